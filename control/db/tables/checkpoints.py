"""The index of checkpoints, and of their copies; the manifest beside their bytes commits them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from control.db.sql.values import Instant
from control.db.tables.schema import ATTEMPT_KEY, ID, WORD, metadata

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", ID, primary_key=True),
    Column("run", ID, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("parent", ID),
    Column("state", WORD, nullable=False),
    Column("abandoned", Boolean, nullable=False, default=False),
    Column("pinned", Boolean, nullable=False, default=False),
    Column("bytes", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("location", Text, nullable=False),
    Column("manifest_sha256", String(80), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("verified_at", Instant),
    Column("trusted_at", Instant),
    Column("tries", Integer, nullable=False, default=0),
    Column("loss", JSON(none_as_null=True)),
    Column("problem", Text),
    Column("because", Text, nullable=False, default=""),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
    UniqueConstraint("run", "generation", "step"),
)

checkpoint_copies = Table(
    "checkpoint_copies",
    metadata,
    Column("checkpoint", ID, ForeignKey("checkpoints.id"), primary_key=True),
    Column("tier", WORD, primary_key=True),
    Column("location", Text, nullable=False),
    Column("node", String(63)),
    Column("state", WORD, nullable=False),
    Column("at", Instant, nullable=False),
    Column("verified_at", Instant),
    Column("problem", Text),
)
"""Of runs that write to one store and keep in another: each checkpoint in each of them. `node` is
where a local one lies.
"""
