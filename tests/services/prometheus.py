"""Private Prometheus servers for tests: `prometheus(config)` starts one to query."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.services.private_server import PrivateServer, absent, free_port


class PrometheusServer:
    """One running Prometheus with a configuration of the test's own."""

    def __init__(self, server: PrivateServer, port: int) -> None:
        self._server = server
        self.url = f"http://127.0.0.1:{port}"

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Return an instant vector: `[{"metric": {...}, "value": [time, "1"]}, ...]`."""
        reply = httpx.get(f"{self.url}/api/v1/query", params={"query": promql}, timeout=10)
        body = reply.json()
        assert body["status"] == "success", body
        return list(body["data"]["result"])

    def get(self, path: str) -> dict[str, Any]:
        """Return the `data` of an API answer, such as `/api/v1/targets` or `/api/v1/alerts`."""
        body = httpx.get(f"{self.url}{path}", timeout=10).json()
        assert body["status"] == "success", body
        return dict(body["data"])

    def reload(self) -> None:
        httpx.post(f"{self.url}/-/reload", timeout=10).raise_for_status()

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self._server.stop()


StartPrometheus = Callable[..., PrometheusServer]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[StartPrometheus]:
    """Return `start(config, files={"rules.yml": ...})`; what it started is stopped after the test.

    `config` and the files are mappings (written as YAML) or ready texts; the files lie beside
    the configuration.
    """
    binary = shutil.which("prometheus")
    if binary is None:
        absent("Prometheus")
    started: list[PrometheusServer] = []

    def start(
        config: Mapping[str, Any] | str,
        *,
        files: Mapping[str, Mapping[str, Any] | str] | None = None,
        arguments: Sequence[str] = (),
    ) -> PrometheusServer:
        folder = tmp_path / f"prometheus-{len(started)}"
        folder.mkdir()
        for name, content in {"prometheus.yml": config, **(files or {})}.items():
            (folder / name).write_text(
                content if isinstance(content, str) else yaml.safe_dump(dict(content))
            )
        server = _start(binary, folder, arguments)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


def _start(binary: str, folder: Path, arguments: Sequence[str]) -> PrometheusServer:
    for _ in range(5):
        port = free_port()
        argv = [
            binary,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-lifecycle",
            "--log.level=warn",
            *arguments,
        ]
        process = PrivateServer(argv, log=folder / "log")
        server = PrometheusServer(process, port)
        if process.wait_until(server.is_ready):
            return server
    raise RuntimeError(f"Prometheus did not start:\n{process.tail()}")
