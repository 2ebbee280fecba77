"""sealed samples

Only adds tables: a control plane of the release before goes on beside a new one. It does not see
what has been sealed, so sealing begins an hour after the tables are there, unless the database is
new.

Revision: 0003
After: 0002
"""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UPGRADE_WINDOW = timedelta(hours=1)


def upgrade() -> None:
    op.create_table(
        "sample_blocks",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("metric", sa.String(length=64), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("num_rows", sa.Integer(), nullable=False),
        sa.Column("num_skipped", sa.Integer(), nullable=False),
        sa.Column("rolled_up", sa.Boolean(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_sample_blocks_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint(
            "run", "generation", "metric", "rank", "last_step", name=op.f("pk_sample_blocks")
        ),
    )
    if op.get_bind().dialect.name == "postgresql":
        # The bytes are compressed already.
        op.execute("ALTER TABLE sample_blocks ALTER COLUMN data SET STORAGE EXTERNAL")
    sealing = op.create_table(
        "sample_sealing",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_sample_sealing_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sample_sealing")),
    )
    has_runs = op.get_bind().scalar(sa.text("SELECT 1 FROM runs LIMIT 1")) is not None
    not_before = (
        datetime.now(UTC) + UPGRADE_WINDOW if has_runs else datetime(1970, 1, 1, tzinfo=UTC)
    )
    if op.get_bind().dialect.name == "sqlite":
        not_before = not_before.replace(tzinfo=None)  # SQLite knows no zones.
    op.bulk_insert(sealing, [{"id": 1, "not_before": not_before}])
    op.create_table(
        "sample_ageing",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_sample_ageing_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("run", "generation", name=op.f("pk_sample_ageing")),
    )


def downgrade() -> None:
    op.drop_table("sample_ageing")
    op.drop_table("sample_sealing")
    op.drop_table("sample_blocks")
