"""A real Prometheus scrapes an agent's page, with the token it asks for and without a warning."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector

from tests.services.private_server import absent
from tests.services.prometheus import StartPrometheus
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.readers import Readers
from trainmaster.spool import Frames, Header
from worker.agent.exporter import Exporter
from worker.agent.records import RankRecord
from worker.agent.scrapes import serve

ROW = {
    "loss": float("nan"),
    "grad_norm": float("inf"),
    "applied": 0.0,
    "tokens": 64.0,
    "step_time_s": 0.2,
    "latency_ms": 2.0,
    "checkpoint_stall_s": 0.1,
}


@pytest.fixture
def page() -> Iterator[str]:
    """The address of a page that shows two ranks of a run."""
    exporter = Exporter("n1", "cpu", link_bytes_per_s=1e8)
    header = Header("r/1/0", STEP_METRIC_NAMES)
    row = tuple(ROW.get(name, 0.5) for name in STEP_METRIC_NAMES)
    for rank in (0, 1):
        record = RankRecord(
            run="r", generation=1, rank=rank, slot=rank, replica=rank, stage=0, pid=1
        )
        exporter.begin(record, time.time())
        exporter.take(record.stream, Frames(0, header, [], header.row_struct().pack(1, 0.0, *row)))
    roles = {"scrape": "viewer", "agents": "agent"}
    admit = Readers(roles.get).admit
    server = serve(exporter, host="127.0.0.1", port=0, admit=admit, take=admit)
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.1)


def test_a_real_prometheus_reads_every_series(
    prometheus: StartPrometheus, page: str, tmp_path: Path
):
    job = {
        "job_name": "trainmaster",
        "authorization": {"credentials": "scrape"},
        "static_configs": [{"targets": [page]}],
    }
    server = prometheus({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
    until(lambda: server.query("trainmaster_step"))
    assert [each["value"][1] for each in server.query("trainmaster_loss")] == ["NaN"]
    assert len(server.query("trainmaster_step")) == 2
    assert server.query("sum by (run) (trainmaster_tokens_total)")[0]["value"][1] == "64"
    assert len(server.query("trainmaster_step_duration_seconds_count")) == 2
    [target] = server.get("/api/v1/targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    logs = [path.read_text() for path in tmp_path.glob("prometheus-*/log")]
    assert not any("warn" in text or "error" in text for text in logs)


def test_the_page_is_well_formed_and_guarded(page: str):
    for token, status in ((None, 401), ("nobody's", 401), ("agents", 403)):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        refused = httpx.get(f"http://{page}/metrics", headers=headers, trust_env=False)
        assert refused.status_code == status
    if shutil.which("promtool") is None:
        absent("promtool")
    headers = {"Authorization": "Bearer scrape"}
    assert httpx.get(f"http://{page}/", headers=headers, trust_env=False).status_code == 404
    shown = httpx.get(f"http://{page}/metrics", headers=headers, trust_env=False)
    assert shown.status_code == 200
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=shown.text, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


class Sick(Collector):
    def collect(self) -> Iterator[Metric]:
        raise ArithmeticError("no series today")


def test_a_reader_that_hangs_up_is_no_word_in_the_log_and_a_fault_is(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    hung_up = threading.Event()

    def admit(_token: str) -> None:
        assert hung_up.wait(10)

    server = serve(Sick(), host="127.0.0.1", port=0, admit=admit, take=lambda _: None)
    port = int(server.server_address[1])
    asked = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer any\r\n\r\n"
    path = asked.replace(b"/metrics", b"/elsewhere")
    try:
        with socket.create_connection(("127.0.0.1", port)) as reader:
            # Closed without a farewell: what is sent to it is refused.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.sendall(path * 100)
        hung_up.set()
        with socket.create_connection(("127.0.0.1", port)) as reader:
            reader.sendall(asked)
            assert reader.recv(1) == b""
        until(lambda: caplog.records)
    finally:
        server.shutdown()
        server.server_close()
    [line] = caplog.records
    assert line.getMessage() == "a request from 127.0.0.1 failed"
    assert line.exc_info is not None
    assert line.exc_info[0] is ArithmeticError
    assert capfd.readouterr().err == ""
