"""Where a bench runs: a database, a real control plane as a process in a home of its own, and
agents likewise; all gone afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from control.db.sql import schema
from control.db.sql.engine import Database
from tests.services.postgres import private_cluster
from tests.services.private_server import bound_to_us, free_port
from trainmaster.client import Client
from trainmaster.errors import UnavailableError
from trainmaster.home import ADMIN_TOKEN, Home

DATABASES = ("sqlite", "postgres")
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
"""PostgreSQL as one would run it, not as tests do."""
FLUSHES = {
    "sqlite": "WAL, synchronous=NORMAL (flushed at each checkpoint of the log)",
    "postgres": ", ".join(f"{name}={value}" for name, value in DURABLE.items()),
}
START_S = 60.0


@dataclass
class Site:
    """What runs.

    Attributes:
        database: SQLAlchemy's address of it.
        headers: what a request of its own needs.
        processes: by name: "control", and one per node.
    """

    kind: str
    root: Path
    database: str
    client: Client
    headers: dict[str, str] = field(default_factory=dict)
    processes: dict[str, psutil.Popen] = field(default_factory=dict)

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds used so far by the control plane, and by all agents."""
        used = {"control": 0.0, "agents": 0.0}
        for name, process in self.processes.items():
            times = process.cpu_times()
            used["control" if name == "control" else "agents"] += times.user + times.system
        return used

    def stop(self) -> None:
        """End all processes, agents first; the database stays."""
        for name in [*(name for name in self.processes if name != "control"), "control"]:
            _end(self.processes.pop(name, None))

    def open(self) -> Database:
        """Return the database, for reading beside or after the control plane."""
        return Database(self.database)


@contextmanager
def site(kind: str, nodes: Sequence[str]) -> Iterator[Site]:
    """Start a control plane on a new database of `kind`, and an agent per node."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-bench-")))
        home = Home(root / "control")
        url = f"sqlite:///{home.database}"
        settings = {"TRAINMASTER_HOME": str(home.root), "TRAINMASTER_LOG_LEVEL": "WARNING"}
        if kind == "postgres":
            cluster = stack.enter_context(private_cluster(**DURABLE))
            url = cluster.url(cluster.create_database())
            settings["TRAINMASTER_DATABASE_URL"] = url
            _migrate(url)
        port = free_port()
        settings["TRAINMASTER_PORT"] = str(port)
        here = Site(kind, root, url, Client(f"http://127.0.0.1:{port}"))
        stack.callback(here.stop)
        log = root / "control.log"
        here.processes["control"] = _start(("control", "serve"), settings, log)
        _wait_for(here, port, log)
        token = home.token(ADMIN_TOKEN)
        here.headers = {"Authorization": f"Bearer {token}"}
        here.client = stack.enter_context(Client(f"http://127.0.0.1:{port}", token, timeout_s=120))
        try:
            for node in nodes:
                _start_agent(here, node)
            yield here
        except Exception as error:
            # The logs go with the folder.
            for path in sorted(root.glob("*.log")):
                error.add_note(f"{path.name} ends with:\n{path.read_text()[-2000:]}")
            raise


def _start_agent(here: Site, node: str) -> None:
    told = here.client.post("/v1/tokens", {"role": "agent", "node": node})
    settings = {
        "TRAINMASTER_HOME": str(here.root / node),
        "TRAINMASTER_URL": here.client.url,
        "TRAINMASTER_TOKEN": told["token"],
        "TRAINMASTER_NODE_NAME": node,
        "TRAINMASTER_SLOTS": "1",
        "TRAINMASTER_METRICS_PORT": "0",
        "OMP_NUM_THREADS": "1",
    }
    log = here.root / f"{node}.log"
    here.processes[node] = _start(("bench.ingest.agent",), settings, log)


def _start(command: Sequence[str], settings: Mapping[str, str], log: Path) -> psutil.Popen:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")}
    with log.open("wb") as out:
        return psutil.Popen(
            [*bound_to_us(None, signal.SIGTERM), sys.executable, "-m", *command],
            env={**environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def _migrate(url: str) -> None:
    database = Database(url)
    schema.upgrade(database)
    database.close()


def _wait_for(here: Site, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    control = here.processes["control"]
    with Client(f"http://127.0.0.1:{port}") as anybody:
        while control.poll() is None and time.monotonic() < deadline:
            try:
                anybody.get("/readyz")
            except UnavailableError:
                time.sleep(0.05)
            else:
                return
    raise RuntimeError(f"the control plane did not start:\n{log.read_text()[-2000:]}")


def _end(process: psutil.Popen | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(timeout=20)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait()
