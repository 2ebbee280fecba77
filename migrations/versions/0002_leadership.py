"""the leader's epoch

Revision: 0002
After: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    leadership = op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_leadership_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leadership")),
    )
    op.bulk_insert(leadership, [{"id": 1, "epoch": 0}])


def downgrade() -> None:
    op.drop_table("leadership")
