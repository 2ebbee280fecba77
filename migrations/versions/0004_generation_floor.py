"""the least number of a run's next generation

Only adds a column that older control planes leave at its default.

Revision: 0004
After: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs",
        sa.Column("generation_floor", sa.Integer(), server_default="0", nullable=False),
    )


def downgrade() -> None:
    op.drop_column("runs", "generation_floor")
