"""Empties the outbox: each notice to each of its channels, again and again until it is taken, is
refused for good, or a day has passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from control.channel_file import ChannelSpec
from control.clock import Clock
from control.db import outbox
from control.db.outbox import Waiting
from control.db.sql.engine import Database
from control.notices import reaches
from control.notify.channels import open_channel, targets
from trainmaster import logs
from trainmaster.errors import TrainmasterError, UnavailableError
from trainmaster.notification import Channel, Notification

log = logging.getLogger(__name__)

SEND_EVERY_S: Final = 2.0
GIVE_UP_AFTER: Final = timedelta(days=1)
_PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
_DONE: Final = frozenset({"sent", "failed"})


def pause_s(attempts: int) -> float:
    """Return for how long to wait after so many attempts that failed."""
    return _PAUSES_S[min(attempts, len(_PAUSES_S)) - 1]


class Sender:
    """The leader's work on the outbox.

    Args:
        opened: how a channel is opened; each time anew, so that nothing of it is kept.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        channels: Sequence[ChannelSpec],
        opened: Callable[[ChannelSpec], Channel] = open_channel,
    ) -> None:
        self._db = db
        self._clock = clock
        self._channels = channels
        self._opened = opened

    def all(self) -> Sequence[tuple[Callable[[], None], float]]:
        """Return the periodic work, and every how many seconds it is due."""
        return ((self.send_notices, SEND_EVERY_S),)

    def send_notices(self) -> None:
        """Try what is due. A crash between sending and noting so sends it once more."""
        with self._db.read() as connection:
            found = outbox.due(connection, now=self._clock.now())
        for notice in found:
            with logs.about(run=notice.run):
                deliveries = self._deliver(notice)
            now = self._clock.now()
            open_until = [
                datetime.fromisoformat(str(each["next_at"]))
                for each in deliveries.values()
                if each["state"] not in _DONE
            ]
            with self._db.write() as connection:
                outbox.settle(
                    connection,
                    notice.id,
                    state=_state(deliveries),
                    deliveries=deliveries,
                    next_at=min(open_until, default=now),
                )

    def _deliver(self, notice: Waiting) -> dict[str, dict[str, Any]]:
        wanted, unknown = targets(self._channels, notice.channels)
        deliveries = {name: dict(each) for name, each in notice.deliveries.items()}
        for name in unknown:
            deliveries[name] = {"state": "failed", "attempts": 0, "because": "no such channel"}
        for channel in wanted:
            before = deliveries.get(channel.name, {"state": "pending", "attempts": 0})
            is_asked_for = notice.channels is not None
            if not is_asked_for and not reaches(notice.severity, channel.least_severity):
                continue
            if before["state"] in _DONE or _is_early(before, self._clock.now()):
                deliveries[channel.name] = before
                continue
            deliveries[channel.name] = self._try(channel, notice, int(before["attempts"]) + 1)
        return deliveries

    def _try(self, channel: ChannelSpec, notice: Waiting, attempts: int) -> dict[str, Any]:
        now = self._clock.now()
        try:
            self._opened(channel).send(
                Notification(
                    title=f"{notice.name}: {notice.title}",
                    body=f"{notice.body}\nRun {notice.run}, {notice.severity}.",
                    severity=notice.severity,
                    run=notice.run,
                )
            )
        except UnavailableError as error:
            if now - notice.created_at < GIVE_UP_AFTER:
                next_at = now + timedelta(seconds=pause_s(attempts))
                return {
                    "state": "pending",
                    "attempts": attempts,
                    "because": error.message,
                    "next_at": next_at.isoformat(),
                }
            return self._failed(attempts, f"{error.message}; given up after a day")
        except TrainmasterError as error:
            return self._failed(attempts, error.message)
        return {"state": "sent", "attempts": attempts, "at": now.isoformat()}

    def _failed(self, attempts: int, because: str) -> dict[str, Any]:
        log.warning("a notification is not sent: %s", because)
        return {"state": "failed", "attempts": attempts, "because": because}


def _is_early(delivery: Mapping[str, Any], now: datetime) -> bool:
    next_at = delivery.get("next_at")
    return next_at is not None and datetime.fromisoformat(str(next_at)) > now


def _state(deliveries: Mapping[str, Mapping[str, Any]]) -> str:
    states = {each["state"] for each in deliveries.values()}
    if "pending" in states:
        return "pending"
    if not states:
        return "unsent"
    return "failed" if "failed" in states else "sent"
