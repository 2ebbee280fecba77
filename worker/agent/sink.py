"""Where neighbours send messages to measure a link (`worker.agent.links`): taken, thrown away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final

from trainmaster.errors import TrainmasterError, UnauthenticatedError
from worker.agent.links import MAX_BYTES, PATH

AT_ONCE: Final = 2
"""Messages that an agent takes at the same time; ranks may train beside it."""
_PART_BYTES: Final = 1 << 16
_SEATS: Final = threading.BoundedSemaphore(AT_ONCE)


class Sink(BaseHTTPRequestHandler):
    """Takes messages of agents that are measuring their links; nothing is kept or told, and what is
    larger than a measurement needs is refused.

    Attributes:
        take: raises the refusal of a bearer token that may not send messages.
    """

    take: Callable[[str], None]

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60.0

    def do_POST(self) -> None:
        """Read a message to its end."""
        length = self.headers.get("Content-Length", "")
        if self.path != PATH:
            self._hang_up(HTTPStatus.NOT_FOUND, f"messages go to {PATH}")
        elif (error := self.refusal(self.take)) is not None:
            self._hang_up(HTTPStatus(error.http_status), error.message)
        elif not length.isdecimal() or int(length) > MAX_BYTES:
            self._hang_up(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_BYTES} bytes")
        elif not _SEATS.acquire(blocking=False):
            self._hang_up(HTTPStatus.SERVICE_UNAVAILABLE, "other links are being measured")
        else:
            try:
                left = int(length)
                while left and (part := self.rfile.read(min(left, _PART_BYTES))):
                    left -= len(part)
            finally:
                _SEATS.release()
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()

    def refusal(self, admit: Callable[[str], None]) -> TrainmasterError | None:
        """Return why the request's bearer token is not admitted; None if it is."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return UnauthenticatedError("a token that may do that is needed, as bearer token")
        try:
            admit(token.strip())
        except TrainmasterError as error:
            return error
        return None

    def _hang_up(self, status: HTTPStatus, because: str) -> None:
        # What the peer goes on to send is no request.
        self.close_connection = True
        self.answer(status, f"{because}\n".encode())

    def answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain") -> None:
        """Send an answer with a body."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Neither messages nor scrapes are worth a line."""
