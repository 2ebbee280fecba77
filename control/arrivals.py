"""Requests as they arrive: how much may come beside their bodies, and how slowly.

A parser joins a header piece by piece, so that one without end holds up everybody; and a request
that never becomes whole takes a connection for ever. Neither needs a token.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class Arrivals(HttpToolsProtocol):
    """Uvicorn's protocol with limits. Times run only while something of a request is missing."""

    most_beside_body: ClassVar[int] = 1 << 16
    """Bytes of a request line, headers and trailers."""
    beside_each_byte: ClassVar[int] = 16
    """Bytes that may frame each byte of a body: chunks may be as small as that."""
    head_s: ClassVar[float] = 30.0
    """From the connection or the first byte of a request to the end of its headers."""
    pause_s: ClassVar[float] = 60.0
    """Between two pieces of a body."""

    _timer: TimerHandle | None = None
    _in_body = False
    _beside = 0
    _body = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._wait(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece, and hang up when what is not a body has become too much."""
        self._beside += len(data)
        if self._in_body:
            self._wait(self.pause_s)
        super().data_received(data)
        if self._beside > self.most_beside_body + self.beside_each_byte * self._body:
            self._hang_up(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._body = 0
        self._wait(self.head_s)

    def on_headers_complete(self) -> None:
        """Wait for the body."""
        self._in_body = True
        self._wait(self.pause_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count what belongs to the body."""
        self._body += len(body)
        self._beside -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Nothing is missing; between requests uvicorn has a time of its own."""
        self._in_body, self._beside = False, 0
        self._wait(None)
        super().on_message_complete()

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.flow.read_paused:  # it is we who are slow
            self._wait(self.pause_s)
        else:
            self._hang_up(HTTPStatus.REQUEST_TIMEOUT)

    def _hang_up(self, status: HTTPStatus) -> None:
        self._wait(None)
        if self.transport.is_closing():
            return
        answering: RequestResponseCycle | None = self.cycle
        if answering is None or answering.response_complete:
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            self.transport.write(f"{head}content-length: 0\r\nconnection: close\r\n\r\n".encode())
        self.transport.close()
