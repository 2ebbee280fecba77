"""Who may read the metrics of an agent or a dashboard, or send an agent messages: who has a role at
the control plane that may.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from hashlib import sha256

from trainmaster.client import Client
from trainmaster.errors import ForbiddenError, UnauthenticatedError, UnavailableError

MAY_READ = frozenset({"viewer", "operator", "admin"})
MAY_SEND = frozenset({"link"})
BELIEVED_S = 60.0
"""For how long the control plane's word on a token holds before it is asked again."""
_MOST_REMEMBERED = 100

RoleOf = Callable[[str], str | None]
"""token -> its role, None of a token that is none. UnavailableError if nobody can be asked."""


def role_at(url: str) -> RoleOf:
    """Return what asks the control plane at `url` for the role of a token."""

    def role_of(token: str) -> str | None:
        with Client(url, token, timeout_s=3.0) as client:
            try:
                role = client.get("/v1/logins/current").get("role")
            except UnauthenticatedError:
                return None
        return role if isinstance(role, str) else None

    return role_of


class Readers:
    """Tells who may read. May be asked by several threads.

    What the control plane said of a token is believed for `BELIEVED_S`, and beyond that while it is
    away: a node stays visible when its control plane is down.

    Args:
        own: a token that may read whatever the control plane says; None for none.
        may: the roles that may.
    """

    def __init__(
        self,
        role_of: RoleOf,
        *,
        own: str | None = None,
        may: frozenset[str] = MAY_READ,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._role_of = role_of
        self._may = may
        self._own = own
        self._now = now
        self._lock = threading.Lock()
        self._told: dict[bytes, tuple[float, str | None]] = {}

    def admit(self, token: str) -> None:
        """Return if `token` may read.

        Raises:
            UnauthenticatedError: it is unknown, revoked or expired.
            ForbiddenError: its role may not.
            UnavailableError: the control plane is away, and this token was not seen before.
        """
        if self._own is not None and hmac.compare_digest(token.encode(), self._own.encode()):
            return
        role = self._role(token)
        if role is None:
            raise UnauthenticatedError("the token is unknown, revoked or expired")
        if role not in self._may:
            raise ForbiddenError(f"a token of the role {role} may not do that here")

    def _role(self, token: str) -> str | None:
        key = sha256(token.encode()).digest()
        with self._lock:
            told = self._told.get(key)
        if told is not None and self._now() - told[0] < BELIEVED_S:
            return told[1]
        try:
            role = self._role_of(token)
        except UnavailableError:
            if told is None:
                raise
            return told[1]
        with self._lock:
            self._told.pop(key, None)
            self._told[key] = self._now(), role
            while len(self._told) > _MOST_REMEMBERED:
                del self._told[next(iter(self._told))]
        return role
