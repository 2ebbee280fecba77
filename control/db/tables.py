"""The tables. Words and units as in docs/glossary.md; the schema itself is created by
`migrations/`.

Who writes what: `facts` nodes, cursors, samples, events, ranks, checkpoints and answers to chores;
`apply` runs, attempts, slots, orders, alerts and incidents; the API requests, rules, tokens and the
audit log. Ids that people see are text; row numbers are never reused.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from control.db.values import Instant

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column that is exactly INTEGER.
_ROW_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_ID = String(200)
_WORD = String(40)

runs = Table(
    "runs",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("state", _WORD, nullable=False),
    Column("state_since", Instant, nullable=False),
    Column("desired", _WORD, nullable=False),
    Column("generation", Integer, nullable=False, default=0),
    # The least number of the next generation; above 0 only after a restore (`control.db.restored`).
    Column("generation_floor", Integer, nullable=False, default=0, server_default="0"),
    Column("version", BigInteger, nullable=False, default=1),
    Column("priority", Integer, nullable=False, default=0),
    Column("spec", JSON, nullable=False),
    Column("workload_key", String(64), nullable=False),
    Column("checkpoint_root", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", _ID, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("because", Text, nullable=False, default=""),
    Column("code", _WORD),
    Column("weights_sha256", String(80)),
    # When the reconciler looks again; `touched` counts what was told meanwhile, so that no turn
    # sleeps over news.
    Column("next_look_at", Instant, nullable=False),
    Column("touched", BigInteger, nullable=False, default=0),
    Column("idempotency_key", String(200), unique=True),
    Index(None, "next_look_at"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run", _ID, ForeignKey("runs.id"), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("parent_generation", Integer),
    Column("state", _WORD, nullable=False),
    Column("cause", Text, nullable=False),
    Column("cause_kind", _WORD, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("checkpoint_every", BigInteger, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("ended_because", Text, nullable=False, default=""),
    Column("resumed_from_step", BigInteger, nullable=False, default=0),
    Column("resumed_from_checkpoint", _ID),
    Column("skip", JSON, nullable=False),
    Column("own_skip", JSON, nullable=False),
    Column("lr_windows", JSON, nullable=False),
    Column("lr_factor", Float(53)),
    Column("store", String(300)),
    Column("ready_at", Instant),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("incident", _ID),
)

_attempt_key = ("attempts.run", "attempts.generation")

ranks = Table(
    "ranks",
    metadata,
    Column("run", _ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("node", String(63), nullable=False),
    Column("slot", Integer, nullable=False),
    Column("replica", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("state", _WORD, nullable=False),
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
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
    Index(None, "node"),
)

# A slot is held while its row is there; the primary key is what makes two holders impossible.
slots = Table(
    "slots",
    metadata,
    Column("node", String(63), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("run", _ID, nullable=False),
    Column("generation", Integer, nullable=False),
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
    Index(None, "run"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(63), primary_key=True),
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
    Column("first_seen_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
)

cursors = Table(
    "cursors",
    metadata,
    Column("node", String(63), ForeignKey("nodes.id"), primary_key=True),
    Column("stream", String(200), primary_key=True),
    Column("offset", BigInteger, nullable=False),
)

sample_chunks = Table(
    "sample_chunks",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True),
    Column("run", _ID, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("num_rows", Integer, nullable=False),
    Column("num_skipped", Integer, nullable=False),
    Column("columns", LargeBinary, nullable=False),
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
    Index(None, "run", "generation", "rank", "last_step"),
    sqlite_autoincrement=True,
)

# Old rows leave `sample_chunks` for here: one row per column of a block, or per rolled-up series
# (`control.db.blocks`, `control.db.samples`). `metric` may be `step` or `at`.
sample_blocks = Table(
    "sample_blocks",
    metadata,
    Column("run", _ID, primary_key=True),
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
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
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
    Column("run", _ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("stage", Integer, nullable=False),
    Column("changed_at", Instant, nullable=False),
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
)
"""How far the samples of a generation have been rolled up (`control.ageing.Stage`)."""

events = Table(
    "events",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("run", _ID, ForeignKey("runs.id")),
    Column("generation", Integer),
    Column("kind", String(80), nullable=False),
    Column("actor", _ID, nullable=False),
    Column("because", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Index(None, "run", "id"),
    sqlite_autoincrement=True,
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("run", _ID, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("parent", _ID),
    Column("state", _WORD, nullable=False),
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
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
    UniqueConstraint("run", "generation", "step"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True),
    Column("run", _ID, ForeignKey("runs.id"), nullable=False),
    Column("kind", _WORD, nullable=False),
    Column("args", JSON, nullable=False),
    Column("actor", _ID, nullable=False),
    Column("why", Text, nullable=False, default=""),
    Column("state", _WORD, nullable=False),
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
    Column("run", _ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", _WORD, nullable=False),
    Column("args", JSON, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("step", BigInteger),
    Column("because", Text, nullable=False, default=""),
    Column("request", _ROW_NUMBER, ForeignKey("requests.id")),
    Column("created_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
    Index(None, "request"),
)

drills = Table(
    "drills",
    metadata,
    Column("run", _ID, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("drill", JSON, nullable=False),
    Column("fired", JSON, nullable=False),
    Column("request", _ROW_NUMBER, ForeignKey("requests.id")),
    Column("created_at", Instant, nullable=False),
    ForeignKeyConstraint(("run", "generation"), _attempt_key),
)

rules = Table(
    "rules",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("pack", String(200), nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", JSON, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("changed_by", _ID, nullable=False),
    Column("removed", Boolean, nullable=False, default=False),
)

rule_versions = Table(
    "rule_versions",
    metadata,
    Column("name", String(200), ForeignKey("rules.name"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("change", _WORD, nullable=False),
    Column("body", JSON, nullable=False),
    Column("at", Instant, nullable=False),
    Column("actor", _ID, nullable=False),
    Column("why", Text, nullable=False, default=""),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("run", _ID, ForeignKey("runs.id"), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("opened_at", Instant, nullable=False),
    Column("closed_at", Instant),
    Column("state", _WORD, nullable=False),
    Column("closed_as", _WORD),
    Column("rung", Integer, nullable=False),
    Column("first_bad_step", BigInteger, nullable=False),
    Column("last_bad_step", BigInteger, nullable=False),
    Column("actions", JSON, nullable=False),
    Column("verification", JSON, nullable=False),
    Column("because", Text, nullable=False, default=""),
    Index(None, "run", "opened_at"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True),
    Column("run", _ID, ForeignKey("runs.id"), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("scope", String(200), nullable=False),
    Column("state", _WORD, nullable=False),
    Column("value", JSON(none_as_null=True)),
    Column("threshold", JSON(none_as_null=True)),
    Column("first_bad_step", BigInteger),
    Column("severity", _WORD, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("incident", _ID),
    Column("since", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Index(None, "run", "rule", "scope"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("role", _WORD, nullable=False),
    Column("node", String(63)),
    Column("created_at", Instant, nullable=False),
    Column("created_by", _ID, nullable=False),
    Column("expires_at", Instant),
    Column("revoked_at", Instant),
)

login_codes = Table(
    "login_codes",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("token", _ID, ForeignKey("tokens.id"), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
)

audit = Table(
    "audit",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("actor", _ID, nullable=False),
    Column("action", String(80), nullable=False),
    Column("target", String(300), nullable=False),
    Column("why", Text, nullable=False, default=""),
    Column("data", JSON, nullable=False),
    sqlite_autoincrement=True,
)

chores = Table(
    "chores",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True),
    Column("kind", _WORD, nullable=False),
    Column("args", JSON, nullable=False),
    # Kind and arguments digested: the same work is not asked for twice while it waits.
    Column("key", String(64), nullable=False),
    Column("run", _ID),
    # Whom it was given to; `bound` when no other node may do it.
    Column("node", String(63)),
    Column("bound", Boolean, nullable=False, default=False),
    Column("state", _WORD, nullable=False),
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
    Column("node", String(63)),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)
"""One row: the number of the newest leader's term."""
