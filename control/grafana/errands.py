"""What the leader does for a Grafana that the settings name: boards now and then, annotations as
things happen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import func, select

from control.clock import Clock
from control.db import tables
from control.db.sql.engine import Database
from control.grafana import publish
from control.grafana.publish import NOTED_KINDS, NOTES_AT_ONCE, Note
from control.grafana.server import Grafana

log = logging.getLogger(__name__)

PUBLISH_EVERY_S: Final = 600.0
ANNOTATE_EVERY_S: Final = 5.0
SETTLED_AFTER: Final = timedelta(seconds=5)
"""Events of different runs may become visible out of the order of their numbers; after this long
none comes in between any more.
"""


class GrafanaErrands:
    """Periodic work for one Grafana. What fails is tried again at the next turn."""

    def __init__(self, db: Database, clock: Clock, grafana: Grafana, prometheus_url: str) -> None:
        self._db = db
        self._clock = clock
        self._grafana = grafana
        self._prometheus_url = prometheus_url
        self._noted: int | None = None

    def all(self) -> Sequence[tuple[Callable[[], None], float]]:
        """Return each piece of work and every how many seconds it is due."""
        return ((self.publish_boards, PUBLISH_EVERY_S), (self.annotate_events, ANNOTATE_EVERY_S))

    def publish_boards(self) -> None:
        """Bring boards, folder and data source up to date."""
        changed = publish.publish(self._grafana, self._prometheus_url)
        if changed:
            log.info("Grafana: wrote %s", ", ".join(changed))

    def annotate_events(self) -> None:
        """Annotate what has happened since the last annotation; the first time, since now."""
        if self._noted is None:
            noted = publish.newest_noted(self._grafana)
            self._noted = self._newest_event() if noted is None else noted
        for note in self._since(self._noted):
            publish.annotate(self._grafana, note)
            self._noted = note.event

    def _newest_event(self) -> int:
        with self._db.read() as connection:
            return connection.scalar(select(func.max(tables.events.c.id))) or 0

    def _since(self, event: int) -> list[Note]:
        e = tables.events.c
        asked = (
            select(e.id, e.run, e.at, e.kind, e.because)
            .where(e.id > event, e.kind.in_(NOTED_KINDS), e.run.is_not(None))
            .where(e.at < self._clock.now() - SETTLED_AFTER)
            .order_by(e.id)
            .limit(NOTES_AT_ONCE)
        )
        with self._db.read() as connection:
            return [
                Note(row.id, row.run, row.at, row.kind, row.because or row.kind)
                for row in connection.execute(asked)
            ]
