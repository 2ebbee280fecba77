"""Nodes, what they are asked to do besides training, and who leads."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from control.db.sql.values import Instant
from control.db.tables.schema import ID, NODE_ID, ROW_NUMBER, WORD, metadata

nodes = Table(
    "nodes",
    metadata,
    Column("id", NODE_ID, primary_key=True),
    Column("boot", String(64), nullable=False),
    Column("version", String(40), nullable=False),
    Column("address", String(255), nullable=False),
    Column("metrics_port", Integer),
    Column("slots", Integer, nullable=False),
    Column("devices", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("profile", JSON, nullable=False),
    Column("clock_skew_s", Float(53), nullable=False, default=0.0),
    Column("cordoned", Boolean, nullable=False, default=False),
    Column("cordoned_because", Text, nullable=False, default="", server_default=""),
    Column("first_seen_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    # What it was found to be able to do (`trainmaster.calibration`).
    Column("calibration", JSON(none_as_null=True)),
    Column("calibrated_at", Instant),
)

# What a node sees of a neighbour on its own (`trainmaster.wire.Reach`), and when it said so.
reaches = Table(
    "reaches",
    metadata,
    Column("witness", NODE_ID, ForeignKey("nodes.id"), primary_key=True),
    Column("node", NODE_ID, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("told", JSON, nullable=False),
)

cursors = Table(
    "cursors",
    metadata,
    Column("node", NODE_ID, ForeignKey("nodes.id"), primary_key=True),
    Column("stream", String(200), primary_key=True),
    Column("offset", BigInteger, nullable=False),
)

chores = Table(
    "chores",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("kind", WORD, nullable=False),
    Column("args", JSON, nullable=False),
    # Kind and arguments digested: the same work is not asked for twice while it waits.
    Column("key", String(64), nullable=False),
    Column("run", ID),
    # Whom it was given to; `bound` when no other node may do it.
    Column("node", NODE_ID),
    Column("bound", Boolean, nullable=False, default=False),
    Column("state", WORD, nullable=False),
    Column("result", JSON, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("taken_at", Instant),
    Column("done_at", Instant),
    Index(None, "state", "node"),
    Index(None, "key"),
    sqlite_autoincrement=True,
)

workloads = Table(
    "workloads",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("info", JSON(none_as_null=True)),
    Column("problems", JSON, nullable=False),
    Column("described_at", Instant, nullable=False),
    Column("node", NODE_ID),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)
"""One row: the number of the newest leader's term."""
