"""The measured timelines of recorded steps: one row per rank and step."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Table,
)

from control.db.tables.schema import ATTEMPT_KEY, ID, metadata

timelines = Table(
    "timelines",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    # Seconds since the epoch at which the step began, by the rank's node.
    Column("at", Float(53), nullable=False),
    Column("length_s", Float(53), nullable=False),
    Column("num_actions", Integer, nullable=False),
    # As `trainmaster.timeline` encodes it.
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
)
