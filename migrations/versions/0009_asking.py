"""silences, alerts from outside, and the outbox of notifications

Only adds tables that older control planes do not know.

Revision: 0009
After: 0008
"""

import sqlalchemy as sa
from alembic import op

from control.db.sql.values import Instant

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "silences",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("rule", sa.String(200), nullable=True),
        sa.Column("run", sa.String(200), nullable=True),
        sa.Column("node", sa.String(63), nullable=True),
        sa.Column("begins_at", Instant(), nullable=False),
        sa.Column("ends_at", Instant(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("created_by", sa.String(200), nullable=False),
        sa.Column("ended_by", sa.String(200), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_silences_run_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_silences_ends_at", "silences", ["ends_at"])
    op.create_table(
        "external_alerts",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("starts_at", Instant(), nullable=False),
        sa.Column("ends_at", Instant(), nullable=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("severity", sa.String(40), nullable=False),
        sa.Column("run", sa.String(200), nullable=True),
        sa.Column("node", sa.String(63), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("annotations", sa.JSON(), nullable=False),
        sa.Column("action", sa.String(4000), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("received_at", Instant(), nullable=False),
        sa.Column("changed_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_external_alerts_run_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_external_alerts"),
        sa.UniqueConstraint(
            "fingerprint", "starts_at", name="uq_external_alerts_fingerprint_starts_at"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_external_alerts_run", "external_alerts", ["run"])

    op.create_table(
        "notifications",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("key", sa.String(400), nullable=False),
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(80), nullable=False),
        sa.Column("about", sa.String(200), nullable=True),
        sa.Column("severity", sa.String(40), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("channels", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("deliveries", sa.JSON(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("next_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_notifications_run_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sa.UniqueConstraint("key", name="uq_notifications_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notifications_state_next_at", "notifications", ["state", "next_at"])
    op.create_index("ix_notifications_run_about", "notifications", ["run", "about"])


def downgrade() -> None:
    op.drop_index("ix_notifications_run_about", table_name="notifications")
    op.drop_index("ix_notifications_state_next_at", table_name="notifications")
    op.drop_table("notifications")
    op.drop_index("ix_external_alerts_run", table_name="external_alerts")
    op.drop_table("external_alerts")
    op.drop_index("ix_silences_ends_at", table_name="silences")
    op.drop_table("silences")
