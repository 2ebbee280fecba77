"""what a rule in `ask` mode proposes

Only adds a column that older control planes leave empty.

Revision: 0007
After: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("proposed", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("incidents", "proposed")
