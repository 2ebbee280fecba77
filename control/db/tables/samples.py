"""What ranks measured: a tail of chunks, sealed into blocks of columns."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
)

from control.db.sql.values import Instant
from control.db.tables.schema import ATTEMPT_KEY, ID, ROW_NUMBER, metadata

sample_chunks = Table(
    "sample_chunks",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("run", ID, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("num_rows", Integer, nullable=False),
    Column("num_skipped", Integer, nullable=False),
    Column("columns", LargeBinary, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
    Index(None, "run", "generation", "rank", "last_step"),
    sqlite_autoincrement=True,
)

# Old rows leave `sample_chunks` for here: one row per column of a block, or per rolled-up series
# (`control.db.samples.blocks`, `control.db.samples.samples`). `metric` may be `step` or `at`.
sample_blocks = Table(
    "sample_blocks",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("metric", String(64), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    # Of a block its end: what is asked for is mostly what is newest.
    Column("last_step", BigInteger, primary_key=True, autoincrement=False),
    Column("first_step", BigInteger, nullable=False),
    Column("num_rows", Integer, nullable=False),
    Column("num_skipped", Integer, nullable=False),
    Column("rolled_up", Boolean, nullable=False),
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
)

sample_sealing = Table(
    "sample_sealing",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("not_before", Instant, nullable=False),
)
"""One row: until when a control plane that knows no blocks may still run beside this one."""

sample_ageing = Table(
    "sample_ageing",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("stage", Integer, nullable=False),
    Column("changed_at", Instant, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
)
"""How far the samples of a generation have been rolled up (`control.ageing.Stage`)."""
