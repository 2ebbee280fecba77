"""A channel through Apprise, which knows Slack, e-mail, webhooks, DingTalk, Feishu, WeCom and a
hundred more by their addresses.

Apprise answers True or False and logs why. Its log is listened to for the status with which a
service refused: one in the 400s will not change by itself (but for 408 and 429), everything else
may. The words of the log are not passed on, since they may hold parts of the address.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Any, Final

from trainmaster.errors import UnavailableError, UserError
from trainmaster.notification import Notification

_TYPES: Final = {"info": "info", "warning": "warning", "critical": "failure"}
_STATUS: Final = re.compile(r"error=(\d{3})")
_PASSING: Final = frozenset({408, 425, 429})
_ONE_AT_A_TIME: Final = threading.Lock()
"""So that what is logged meanwhile is about the one notice."""


class AppriseChannel:
    """One address. Importing Apprise takes a second, so it is done when first needed."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url

    def send(self, notice: Notification) -> None:
        """Send one notice.

        Raises:
            UserError: trying again cannot help: the address is none, or the service refuses.
            UnavailableError: the service could not be reached, or is not able to take it now.
        """
        import apprise

        service = apprise.Apprise()
        if not service.add(self._url):
            raise UserError(f"channel {self._name}: its url is none that Apprise knows")
        heard = _Heard(logging.WARNING)
        log = logging.getLogger("apprise")
        with _ONE_AT_A_TIME:
            log.addHandler(heard)
            try:
                sent: Any = service.notify(
                    title=notice.title,
                    body=notice.body,
                    notify_type=_TYPES[notice.severity],
                    body_format="text",
                )
            finally:
                log.removeHandler(heard)
        if sent:
            return
        if heard.status is not None and 400 <= heard.status < 500 and heard.status not in _PASSING:
            raise UserError(f"channel {self._name}: the service refused with {heard.status}")
        what = f"answered {heard.status}" if heard.status is not None else "could not be reached"
        raise UnavailableError(f"channel {self._name}: the service {what}")


class _Heard(logging.Handler):
    """The status that a service answered with, as Apprise logs it."""

    status: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := _STATUS.search(record.getMessage()):
            self.status = int(found.group(1))
