"""tags of runs, and which are archived

Only adds a table that older control planes leave alone.

Revision: 0011
After: 0010
"""

import sqlalchemy as sa
from alembic import op

from control.db.sql.values import Instant

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shelf",
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("archived_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_shelf")),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_shelf_run_runs")),
    )


def downgrade() -> None:
    op.drop_table("shelf")
