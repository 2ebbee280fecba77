"""The address at which Prometheus reads an agent: plain HTTP, one page; and where neighbours send
messages that are thrown away, to measure the link.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trainmaster.errors import TrainmasterError, UnauthenticatedError
from worker.agent.sink import Sink


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

    class Handler(Sink):
        """Answers scrapes, too."""

        def do_GET(self) -> None:  # noqa: N802
            if self.path.partition("?")[0] != "/metrics":
                self.answer(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n")
            elif (error := self._refusal()) is not None:
                status = HTTPStatus(error.http_status)
                self.answer(status, f"{error.message}\n".encode())
            else:
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self.answer(HTTPStatus.OK, encode(registry), content_type)

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

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
