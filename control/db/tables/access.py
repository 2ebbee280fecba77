"""Tokens, login codes and the audit log."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, String, Table, Text

from control.db.sql.values import Instant
from control.db.tables.schema import ID, NODE_ID, ROW_NUMBER, WORD, metadata

tokens = Table(
    "tokens",
    metadata,
    Column("id", ID, primary_key=True),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("role", WORD, nullable=False),
    Column("node", NODE_ID),
    Column("created_at", Instant, nullable=False),
    Column("created_by", ID, nullable=False),
    Column("expires_at", Instant),
    Column("revoked_at", Instant),
)

login_codes = Table(
    "login_codes",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("token", ID, ForeignKey("tokens.id"), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
)

audit = Table(
    "audit",
    metadata,
    Column("id", ROW_NUMBER, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("actor", ID, nullable=False),
    Column("action", String(80), nullable=False),
    Column("target", String(300), nullable=False),
    Column("why", Text, nullable=False, default=""),
    Column("data", JSON, nullable=False),
    sqlite_autoincrement=True,
)
