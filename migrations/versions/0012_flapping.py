"""alerts that stay firing because their rule fires again and again

Only adds a column that older control planes leave alone.

Revision: 0012
After: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "alerts", sa.Column("flapping", sa.Boolean(), server_default=sa.false(), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("alerts", "flapping")
