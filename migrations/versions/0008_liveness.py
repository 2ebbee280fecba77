"""what is known of ranks that hang, and of witnesses

Only adds tables and columns that older control planes leave empty.

Revision: 0008
After: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ranks", sa.Column("pulse", sa.JSON(none_as_null=True)))
    op.add_column("attempts", sa.Column("stacks", sa.JSON(none_as_null=True)))
    op.add_column("attempts", sa.Column("ended_by", sa.JSON(none_as_null=True)))
    op.add_column(
        "nodes", sa.Column("cordoned_because", sa.Text(), server_default="", nullable=False)
    )
    op.create_table(
        "stacks",
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(63), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("how", sa.String(40), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("incident", sa.String(200)),
        sa.PrimaryKeyConstraint("run", "generation", "id", "rank", name=op.f("pk_stacks")),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_stacks_run_generation_attempts"),
        ),
    )
    op.create_table(
        "reaches",
        sa.Column("witness", sa.String(63), nullable=False),
        sa.Column("node", sa.String(63), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("told", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("witness", "node", name=op.f("pk_reaches")),
        sa.ForeignKeyConstraint(["witness"], ["nodes.id"], name=op.f("fk_reaches_witness_nodes")),
    )


def downgrade() -> None:
    op.drop_table("reaches")
    op.drop_table("stacks")
    op.drop_column("nodes", "cordoned_because")
    op.drop_column("attempts", "ended_by")
    op.drop_column("attempts", "stacks")
    op.drop_column("ranks", "pulse")
