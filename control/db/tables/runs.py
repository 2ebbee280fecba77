"""Runs, their attempts and ranks, what people ask of them, and what has happened."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from control.db.sql.values import Instant
from control.db.tables.schema import ATTEMPT_KEY, ID, NODE_ID, ROW_NUMBER, WORD, metadata

runs = Table(
    "runs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("state", WORD, nullable=False),
    Column("state_since", Instant, nullable=False),
    Column("desired", WORD, nullable=False),
    Column("generation", Integer, nullable=False, default=0),
    # The least number of the next generation; above 0 only after a restore (`control.db.restored`).
    Column("generation_floor", Integer, nullable=False, default=0, server_default="0"),
    Column("version", BigInteger, nullable=False, default=1),
    Column("priority", Integer, nullable=False, default=0),
    Column("spec", JSON, nullable=False),
    Column("workload_key", String(64), nullable=False),
    Column("checkpoint_root", Text, nullable=False),
    # Where its checkpoints are copied to; none where they are written there at once.
    Column("copy_root", Text),
    Column("created_at", Instant, nullable=False),
    Column("created_by", ID, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("because", Text, nullable=False, default=""),
    Column("code", WORD),
    Column("weights_sha256", String(80)),
    # When the reconciler looks again; `touched` counts what was told meanwhile, so that no turn
    # sleeps over news.
    Column("next_look_at", Instant, nullable=False),
    Column("touched", BigInteger, nullable=False, default=0),
    Column("idempotency_key", String(200), unique=True),
    Index(None, "next_look_at"),
)

# Where people have put a run. Apart from the run itself, which only the reconciler changes.
shelf = Table(
    "shelf",
    metadata,
    Column("run", ID, ForeignKey("runs.id"), primary_key=True),
    Column("tags", JSON, nullable=False),
    Column("archived_at", Instant),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run", ID, ForeignKey("runs.id"), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("parent_generation", Integer),
    Column("state", WORD, nullable=False),
    Column("cause", Text, nullable=False),
    Column("cause_kind", WORD, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("checkpoint_every", BigInteger, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("ended_because", Text, nullable=False, default=""),
    # What ended it before its time (`control.recovery.endings.Ending`).
    Column("ended_by", JSON(none_as_null=True)),
    Column("resumed_from_step", BigInteger, nullable=False, default=0),
    Column("resumed_from_checkpoint", ID),
    Column("skip", JSON, nullable=False),
    Column("own_skip", JSON, nullable=False),
    Column("lr_windows", JSON, nullable=False),
    Column("lr_factor", Float(53)),
    Column("store", String(300)),
    Column("ready_at", Instant),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("incident", ID),
    # Whose stacks are wanted (`trainmaster.wire.StackCall`, and for which incident).
    Column("stacks", JSON(none_as_null=True)),
)

ranks = Table(
    "ranks",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("node", NODE_ID, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("replica", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("state", WORD, nullable=False),
    Column("pid", Integer),
    Column("boot", String(64)),
    Column("last_step", BigInteger),
    Column("last_seen_at", Instant),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("exited_at", Instant),
    Column("stopped", Boolean, nullable=False, default=False),
    Column("failure", JSON(none_as_null=True)),
    Column("finished", JSON(none_as_null=True)),
    # Where it has stood still for a while (`trainmaster.wire.Pulse`).
    Column("pulse", JSON(none_as_null=True)),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
    Index(None, "node"),
)

# A slot is held while its row is there; the primary key is what makes two holders impossible.
slots = Table(
    "slots",
    metadata,
    Column("node", NODE_ID, primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("run", ID, nullable=False),
    Column("generation", Integer, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
    Index(None, "run"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("run", ID, ForeignKey("runs.id"), nullable=False),
    Column("kind", WORD, nullable=False),
    Column("args", JSON, nullable=False),
    Column("actor", ID, nullable=False),
    Column("why", Text, nullable=False, default=""),
    Column("state", WORD, nullable=False),
    Column("because", Text, nullable=False, default=""),
    Column("generation", Integer),
    Column("step", BigInteger),
    Column("created_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("idempotency_key", String(200)),
    UniqueConstraint("run", "idempotency_key"),
    sqlite_autoincrement=True,
)

orders = Table(
    "orders",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", WORD, nullable=False),
    Column("args", JSON, nullable=False),
    Column("state", WORD, nullable=False),
    Column("step", BigInteger),
    Column("because", Text, nullable=False, default=""),
    Column("request", ROW_NUMBER, ForeignKey("requests.id")),
    Column("created_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
    Index(None, "request"),
)

stacks = Table(
    "stacks",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("node", NODE_ID, nullable=False),
    Column("at", Instant, nullable=False),
    Column("how", WORD, nullable=False),
    Column("text", Text, nullable=False),
    Column("because", Text, nullable=False),
    Column("incident", ID),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
)

drills = Table(
    "drills",
    metadata,
    Column("run", ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("drill", JSON, nullable=False),
    Column("fired", JSON, nullable=False),
    Column("request", ROW_NUMBER, ForeignKey("requests.id")),
    Column("created_at", Instant, nullable=False),
    ForeignKeyConstraint(("run", "generation"), ATTEMPT_KEY),
)

events = Table(
    "events",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("run", ID, ForeignKey("runs.id")),
    Column("generation", Integer),
    Column("kind", String(80), nullable=False),
    Column("actor", ID, nullable=False),
    Column("because", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Index(None, "run", "id"),
    sqlite_autoincrement=True,
)
