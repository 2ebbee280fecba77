"""What a real Prometheus reads in tests: the API on a port, and ranks as their agent shows them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.integration.control.api import Plane
from trainmaster.errors import UnavailableError
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.spool import Frames, Header
from worker.agent.exporter import LINGER_S, Exporter
from worker.agent.records import RankRecord
from worker.agent.scrapes import serve


@contextmanager
def served(here: Plane) -> Iterator[str]:
    """Serve the control plane's API to other processes; give its `host:port`."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(here.http.app, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


class Rank:
    """A rank of one run, as its agent shows it to Prometheus.

    Attributes:
        answers: whether the page can be read.
    """

    def __init__(self, run: str, node: str = "n1") -> None:
        self._exporter = Exporter(node, "cpu", link_bytes_per_s=None)
        self._record = RankRecord(run=run, generation=1, rank=0, slot=0, replica=0, stage=0, pid=1)
        self._exporter.begin(self._record, time.time())
        self.answers = True
        self._page = serve(
            self._exporter, host="127.0.0.1", port=0, admit=self._admit, take=lambda _: None
        )
        self.port = int(self._page.server_address[1])

    def _admit(self, _token: str) -> None:
        if not self.answers:
            raise UnavailableError("too busy to answer")

    def ends_step(self, step: int, *, loss: float) -> None:
        header = Header(self._record.stream, STEP_METRIC_NAMES)
        row = (loss if name == "loss" else 0.5 for name in STEP_METRIC_NAMES)
        packed = header.row_struct().pack(step, 0.0, *row)
        self._exporter.take(self._record.stream, Frames(0, header, [], packed))

    def ended_long_ago(self) -> None:
        """End the rank, so long ago that its series need not be shown any more."""
        now = time.time()
        self._exporter.end(self._record, now - LINGER_S - 1)
        self._exporter.sweep(now)

    def stop(self) -> None:
        self._page.shutdown()
        self._page.server_close()


def scrape_config(address: str, token: str) -> dict[str, Any]:
    """Return how Prometheus finds agents and reads them, as in deploy/prometheus but sooner."""
    authorization = {"type": "Bearer", "credentials": token}
    discovery = {
        "url": f"http://{address}/v1/prometheus/targets",
        "refresh_interval": "1s",
        "authorization": authorization,
    }
    return {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "scrape_configs": [
            {
                "job_name": "trainmaster-agents",
                "honor_labels": True,
                "authorization": authorization,
                "http_sd_configs": [discovery],
            }
        ],
    }
