"""Rules, the alerts they raise, and the incidents that follow."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from control.db.sql.values import Instant
from control.db.tables.schema import ID, NODE_ID, ROW_NUMBER, WORD, metadata

rules = Table(
    "rules",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("pack", String(200), nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", JSON, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("changed_by", ID, nullable=False),
    Column("removed", Boolean, nullable=False, default=False),
)

rule_versions = Table(
    "rule_versions",
    metadata,
    Column("name", String(200), ForeignKey("rules.name"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("change", WORD, nullable=False),
    Column("body", JSON, nullable=False),
    Column("at", Instant, nullable=False),
    Column("actor", ID, nullable=False),
    Column("why", Text, nullable=False, default=""),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", ID, primary_key=True),
    Column("run", ID, ForeignKey("runs.id"), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("opened_at", Instant, nullable=False),
    Column("closed_at", Instant),
    Column("state", WORD, nullable=False),
    Column("closed_as", WORD),
    Column("rung", Integer, nullable=False),
    Column("first_bad_step", BigInteger, nullable=False),
    Column("last_bad_step", BigInteger, nullable=False),
    Column("actions", JSON, nullable=False),
    Column("verification", JSON, nullable=False),
    Column("proposed", JSON(none_as_null=True)),
    Column("because", Text, nullable=False, default=""),
    Index(None, "run", "opened_at"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("run", ID, ForeignKey("runs.id"), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("scope", String(200), nullable=False),
    Column("state", WORD, nullable=False),
    Column("value", JSON(none_as_null=True)),
    Column("threshold", JSON(none_as_null=True)),
    Column("first_bad_step", BigInteger),
    Column("severity", WORD, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("incident", ID),
    Column("flapping", Boolean, nullable=False, default=False, server_default=false()),
    Column("since", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Index(None, "run", "rule", "scope"),
    sqlite_autoincrement=True,
)

silences = Table(
    "silences",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    # Of each of the three None means: all.
    Column("rule", String(200)),
    Column("run", ID, ForeignKey("runs.id")),
    Column("node", NODE_ID),
    Column("begins_at", Instant, nullable=False),
    Column("ends_at", Instant, nullable=False),
    Column("why", Text, nullable=False, default=""),
    Column("created_at", Instant, nullable=False),
    Column("created_by", ID, nullable=False),
    Column("ended_by", ID),
    Index(None, "ends_at"),
    sqlite_autoincrement=True,
)

external_alerts = Table(
    "external_alerts",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("starts_at", Instant, nullable=False),
    Column("ends_at", Instant),
    Column("name", String(200), nullable=False),
    Column("state", WORD, nullable=False),
    Column("severity", WORD, nullable=False),
    Column("run", ID, ForeignKey("runs.id")),
    Column("node", NODE_ID),
    Column("labels", JSON, nullable=False),
    Column("annotations", JSON, nullable=False),
    Column("action", String(4000), nullable=False),
    Column("outcome", Text, nullable=False, default=""),
    Column("received_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    UniqueConstraint("fingerprint", "starts_at"),
    Index(None, "run"),
    sqlite_autoincrement=True,
)

notifications = Table(
    "notifications",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("key", String(400), nullable=False, unique=True),
    Column("run", ID, ForeignKey("runs.id"), nullable=False),
    Column("kind", String(80), nullable=False),
    Column("about", String(200)),
    Column("severity", WORD, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("channels", JSON(none_as_null=True)),
    Column("state", WORD, nullable=False),
    Column("deliveries", JSON, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("next_at", Instant, nullable=False),
    Index(None, "state", "next_at"),
    Index(None, "run", "about"),
    sqlite_autoincrement=True,
)
"""The outbox."""
