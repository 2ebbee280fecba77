"""Alembic's entry: runs revisions on the connection that `db.sql.schema` hands over, or on `-x
url=...`.
"""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from control.db.sql.engine import Database
from control.db.sql.values import Instant
from control.db.tables import metadata


def written(kind: str, item: Any, _context: AutogenContext) -> str | Literal[False]:
    # A revision must stay as it is when the code moves on, so it names no type of ours.
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, Instant) else False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_type=True,
        render_item=written,
        # SQLite cannot alter a column in place: Alembic copies the table.
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database(context.get_x_argument(as_dictionary=True)["url"]).migrate() as opened:
        run(opened)
