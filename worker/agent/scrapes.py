"""The address at which Prometheus reads an agent: plain HTTP, one page."""

from __future__ import annotations

import hmac
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


def serve(collector: Collector, *, host: str, port: int, token: str | None) -> ThreadingHTTPServer:
    """Serve `/metrics` from a thread of its own; `server_address` tells the port.

    Args:
        port: 0 for any free one.
        token: what a scrape must show as bearer token; None lets anyone read.

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
            elif token is not None and not self._shows(token):
                self._answer(HTTPStatus.UNAUTHORIZED, b"a bearer token is needed\n")
            else:
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(registry), content_type)

        def _shows(self, expected: str) -> bool:
            shown = self.headers.get("Authorization", "")
            return hmac.compare_digest(shown.encode(), f"Bearer {expected}".encode())

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
