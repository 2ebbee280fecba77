"""The end of the process, as requests see it: one that is still open when no more can be waited for
is answered with 503, and never with a fault of ours.
"""

from __future__ import annotations

import asyncio
import threading

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.api.errors import answer_error
from trainmaster.errors import UnavailableError

STOPPING = UnavailableError(
    "the control plane stops before this was done; it may be done all the same: look, then ask "
    "again",
    code="stopping",
)


class Ending:
    """ASGI middleware: once `draining` is set, connections are not kept, and a request that the
    server cancels is told so.
    """

    def __init__(self, app: ASGIApp, draining: threading.Event) -> None:
        self._app = app
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if self._draining.is_set():
                    # The next request of this caller finds another control plane.
                    headers = [*message.get("headers", ()), (b"connection", b"close")]
                    message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if started or task is None or not self._draining.is_set():
                raise
            task.uncancel()
            await answer_error(STOPPING)(scope, receive, sent)
