"""Where a fleet bench runs: a private PostgreSQL that really flushes, control planes, a client."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from control import auth
from control.db.sql import schema
from control.db.sql.engine import Database
from tests.services.postgres import PostgresCluster, private_cluster
from tests.services.private_server import free_port
from trainmaster.client import Client
from trainmaster.errors import UnavailableError

WORKLOAD = "simulated:workload"
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@dataclass(frozen=True, slots=True)
class Site:
    """What is running."""

    cluster: PostgresCluster
    database: Database
    controls: Sequence[subprocess.Popen[bytes]]
    ports: Sequence[int]
    client: Client
    tokens: dict[str, str]

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds used so far, by kind of process."""
        control = sum(_cpu_s(psutil.Process(each.pid)) for each in self.controls)
        server = psutil.Process(self.cluster.pid)
        database = sum(_cpu_s(each) for each in (server, *server.children()))
        ended = server.cpu_times()
        database += ended.children_user + ended.children_system
        return {"control": control, "database": database, "agents": _cpu_s(psutil.Process())}


@contextmanager
def site(num_controls: int, nodes: Sequence[str]) -> Iterator[Site]:
    """Start everything; `nodes` get tokens."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-fleet-")))
        cluster = stack.enter_context(private_cluster(**DURABLE))
        url = cluster.url(cluster.create_database())
        database = Database(url)
        stack.callback(database.close)
        schema.upgrade(database)
        admin, tokens = _make_tokens(database, nodes)
        ports = [free_port() for _ in range(num_controls)]
        controls = [_start(root / f"c{port}", url, port) for port in ports]
        for each in controls:
            stack.callback(_end, each)
        client = stack.enter_context(Client(f"http://127.0.0.1:{ports[0]}", admin, timeout_s=60))
        for port, control in zip(ports, controls, strict=True):
            _wait_for(port, admin, control, root / f"c{port}" / "log")
        yield Site(cluster, database, controls, ports, client, tokens)


def _make_tokens(database: Database, nodes: Sequence[str]) -> tuple[str, dict[str, str]]:
    now = datetime.now(UTC)
    with database.write() as connection:
        _, admin = auth.create_token(
            connection, role="admin", name="bench", node=None, actor="bench", now=now
        )
        tokens = {
            node: auth.create_token(
                connection, role="agent", name=None, node=node, actor="bench", now=now
            )[1]
            for node in nodes
        }
    return admin, tokens


def _start(home: Path, url: str, port: int) -> subprocess.Popen[bytes]:
    home.mkdir()
    environment = {
        **os.environ,
        "TRAINMASTER_HOME": str(home),
        "TRAINMASTER_DATABASE_URL": url,
        "TRAINMASTER_PORT": str(port),
        "TRAINMASTER_LOG_LEVEL": "WARNING",
    }
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "control", "serve"], env=environment, stderr=log, stdout=log
        )


def _wait_for(port: int, token: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    with Client(f"http://127.0.0.1:{port}", token) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.get("/readyz")
            except UnavailableError:
                time.sleep(0.1)
            else:
                return
    raise RuntimeError(f"a control plane did not start:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system
