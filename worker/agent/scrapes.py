"""The address at which Prometheus reads an agent: plain HTTP, one page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trainmaster.errors import TrainmasterError, UnauthenticatedError


def serve(
    collector: Collector, *, host: str, port: int, admit: Callable[[str], None] | None
) -> ThreadingHTTPServer:
    """Serve `/metrics` from a thread of its own; `server_address` tells the port.

    Args:
        port: 0 for any free one.
        admit: raises the refusal of a bearer token that may not read; None lets anyone read.

    Raises:
        OSError: the port is taken.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    class Handler(BaseHTTPRequestHandler):
        """Answers scrapes."""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n")
            elif (error := self._refusal()) is not None:
                status = HTTPStatus(error.http_status)
                self._answer(status, f"{error.message}\n".encode())
            else:
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(registry), content_type)

        def _refusal(self) -> TrainmasterError | None:
            if admit is None:
                return None
            scheme, _, token = self.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                return UnauthenticatedError("a token that may read is needed, as bearer token")
            try:
                admit(token.strip())
            except TrainmasterError as error:
                return error
            return None

        def _answer(
            self, status: HTTPStatus, body: bytes, content_type: str = "text/plain"
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            if status is HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Scrapes are not worth a line."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
