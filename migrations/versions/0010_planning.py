"""what nodes were found to be able to do

Only adds columns that older control planes leave alone.

Revision: 0010
After: 0009
"""

import sqlalchemy as sa
from alembic import op

from control.db.sql.values import Instant

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("calibration", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("nodes", sa.Column("calibrated_at", Instant(), nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "calibrated_at")
    op.drop_column("nodes", "calibration")
