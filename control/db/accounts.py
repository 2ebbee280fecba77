"""Where the wall time of a run went. The facts come from here; the accounting itself is
`control.goodput`.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection


def goodput_of(connection: Connection, run: str, *, now: datetime) -> dict[str, float]:
    """Return bucket -> seconds, with `wall_s` and `productive_ratio`."""
    del connection, run, now
    return {}
