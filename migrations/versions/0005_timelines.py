"""measured timelines of chosen steps

Only adds a table that older control planes do not know.

Revision: 0005
After: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "timelines",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("length_s", sa.Float(53), nullable=False),
        sa.Column("num_actions", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_timelines_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("run", "generation", "step", "rank", name=op.f("pk_timelines")),
    )
    if op.get_bind().dialect.name == "postgresql":
        # The bytes are compressed already.
        op.execute("ALTER TABLE timelines ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("timelines")
