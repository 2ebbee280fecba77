"""Private Alertmanagers for tests: `alertmanager(config)` starts one; it may be restarted."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.services.private_server import PrivateServer, absent, free_port


class AlertmanagerServer:
    """One Alertmanager at a fixed address, with a configuration of the test's own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        self._process: PrivateServer | None = None
        self.address = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def start(self) -> None:
        """Start it where it was before, or else at any free port."""
        for _ in range(5):
            address = self.address or f"127.0.0.1:{free_port()}"
            argv = [
                self._binary,
                f"--config.file={self._folder}/alertmanager.yml",
                f"--storage.path={self._folder}/data",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
                "--log.level=warn",
            ]
            self._process = PrivateServer(argv, log=self._folder / "log")
            if self._process.wait_until(lambda at=address: _is_ready(at)):
                self.address = address
                return
        raise RuntimeError(f"Alertmanager did not start:\n{self._process.tail()}")

    def restart(self) -> None:
        """End it and start it again on its data."""
        self.stop()
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def delivered(self) -> int:
        """Return how many webhook messages this process has sent and had answered with 2xx."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        sent, failed = (
            sum(
                float(value)
                for value in re.findall(
                    rf'^alertmanager_notifications_{name}{{[^}}]*"webhook"[^}}]*}} (\S+)$',
                    text,
                    flags=re.MULTILINE,
                )
            )
            for name in ("total", "failed_total")
        )
        return int(sent - failed)


StartAlertmanager = Callable[[Mapping[str, Any]], AlertmanagerServer]


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[StartAlertmanager]:
    """Return `start(config)`; what it started is stopped after the test."""
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        absent("Alertmanager")
    started: list[AlertmanagerServer] = []

    def start(config: Mapping[str, Any]) -> AlertmanagerServer:
        folder = tmp_path / f"alertmanager-{len(started)}"
        folder.mkdir()
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(dict(config)))
        server = AlertmanagerServer(binary, folder)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
