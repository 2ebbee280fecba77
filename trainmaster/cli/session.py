"""What a command works with: settings, a connection, the two output streams, and time.

Commands find it as `ctx.obj`; tests hand in one with a fake connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

import typer

from trainmaster.cli.output import Output
from trainmaster.cli.settings import Settings
from trainmaster.errors import NotFoundError, UnauthenticatedError

MAX_ID_CHARS = 1000


class Api(Protocol):
    """The part of `trainmaster.client.Client` that commands use."""

    def get(self, path: str, **query: str | int | float | bool | None) -> Any: ...

    def post(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Any: ...

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any: ...

    def delete(self, path: str) -> Any: ...

    def close(self) -> None: ...


def connect(settings: Settings) -> Api:
    """Return a connection to the control plane of `settings`.

    Raises:
        UserError: the address or the token cannot be one.
        UnauthenticatedError: there is no token to speak with.
        UnavailableError: there is none either, and nobody who would ask for it.
    """
    from trainmaster.client import Client  # httpx costs a tenth of a second

    token = settings.control_token
    if token is None:
        with Client(settings.control_url) as nobody:
            nobody.get("/healthz")
        raise UnauthenticatedError(
            f"there is no token: set TRAINMASTER_TOKEN, or point TRAINMASTER_HOME to the state "
            f"directory of a `trainmaster up` (none is stored in {settings.home.root})"
        )
    # Submitting waits until a node has described the workload, which imports torch.
    return Client(settings.control_url, token, timeout_s=90.0)


@dataclass
class Session:
    """One invocation of the command line."""

    settings: Settings
    output: Output
    connect: Callable[[Settings], Api] = connect
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _api: Api | None = field(default=None, repr=False)

    @property
    def api(self) -> Api:
        """The connection, made at first use."""
        if self._api is None:
            self._api = self.connect(self.settings)
        return self._api

    def close(self) -> None:
        """Close the connection, if one was made."""
        if self._api is not None:
            self._api.close()


def session_of(context: typer.Context) -> Session:
    """Return the session that the command was run with."""
    session = context.find_root().obj
    assert isinstance(session, Session)
    return session


def segment(kind: str, name: str) -> str:
    """Return an id as one segment of a path.

    Raises:
        NotFoundError: no `kind` can be called that.
    """
    if name in {"", ".", ".."} or "\0" in name or len(name) > MAX_ID_CHARS:
        raise NotFoundError(f"there is no {kind} {name[:MAX_ID_CHARS]!r}")
    return quote(name, safe="", errors="replace")
