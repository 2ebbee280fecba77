"""The address at which Prometheus reads an agent: plain HTTP, one page; and where neighbours send
messages that are thrown away, to measure the link.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from worker.agent.sink import Sink

log = logging.getLogger(__name__)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong; whoever asked may hang up without a word about it."""
        if not isinstance(sys.exception(), ConnectionError):
            log.exception("a request from %s failed", client_address[0])


def serve(
    collector: Collector,
    *,
    host: str,
    port: int,
    admit: Callable[[str], None] | None,
    take: Callable[[str], None],
) -> ThreadingHTTPServer:
    """Serve `/metrics` from a thread of its own; `server_address` tells the port.

    Args:
        port: 0 for any free one.
        admit: raises the refusal of a bearer token that may not read; None lets anyone read.
        take: the same of one that may not send messages.

    Raises:
        OSError: the port is taken.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    class Handler(Sink):
        """Answers scrapes, too."""

        def do_GET(self) -> None:  # noqa: N802
            if self.path.partition("?")[0] != "/metrics":
                self.answer(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n")
            elif admit is not None and (error := self.refusal(admit)) is not None:
                status = HTTPStatus(error.http_status)
                self.answer(status, f"{error.message}\n".encode())
            else:
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self.answer(HTTPStatus.OK, encode(registry), content_type)

    Handler.take = staticmethod(take)
    server = _Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
