"""copies of checkpoints in further stores

Revision: 0006
After: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("copy_root", sa.Text()))
    op.create_table(
        "checkpoint_copies",
        sa.Column("checkpoint", sa.String(200), nullable=False),
        sa.Column("tier", sa.String(40), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("node", sa.String(63)),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verified_at", sa.DateTime(timezone=True)),
        sa.Column("problem", sa.Text()),
        sa.ForeignKeyConstraint(
            ["checkpoint"],
            ["checkpoints.id"],
            name=op.f("fk_checkpoint_copies_checkpoint_checkpoints"),
        ),
        sa.PrimaryKeyConstraint("checkpoint", "tier", name=op.f("pk_checkpoint_copies")),
    )


def downgrade() -> None:
    op.drop_table("checkpoint_copies")
    op.drop_column("runs", "copy_root")
