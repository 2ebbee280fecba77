"""Where the dashboard's bench runs: a control plane with a long run and many short ones, and the
dashboard before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import psutil
from sqlalchemy import select, update

from bench.measured import steps
from control import auth
from control.db import tables
from control.db.samples import chunks, samples
from control.db.sql import schema
from control.db.sql.engine import Database
from control.decision import AttemptEnd
from tests.browser.conftest import answers, wait_for
from tests.integration.control.scene import Scene
from tests.services.private_server import free_port
from trainmaster.home import Home

METRICS = (
    "loss",
    "grad_norm",
    "lr",
    "applied",
    "tokens",
    "step_time_s",
    "compute_s",
    "utilization_ratio",
    "memory_used_ratio",
    "bubble_ratio",
    "latency_ms",
)
GROWS_BY = 20
GROWS_EVERY_S = 2.0
BLOCK = 50_000
DIFFERENT = 1000
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Site:
    """What runs: the dashboard's address and process, a token for it, the long run."""

    url: str
    dashboard: psutil.Process
    control: psutil.Process
    token: str
    run: str
    home: Path


class _Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def make(root: Path, num_steps: int, num_runs: int) -> tuple[str, str]:
    """Make the state directory `root`: one run of `num_steps`, and `num_runs` that ended. Return
    the run and a token; where the same was made there before, that is taken.
    """
    made = root / "made.json"
    asked = [num_steps, num_runs]
    if made.exists():
        told = json.loads(made.read_text())
        if told["asked"] == asked:
            return told["run"], told["token"]
        raise SystemExit(f"{root} holds another bench ({told['asked']}): take an empty folder")
    home = Home(root)
    home.database.parent.mkdir(parents=True)
    with closing(Database(f"sqlite:///{home.database}")) as database:
        schema.upgrade(database)
        run = _fill(database, num_steps, num_runs)
        with database.write() as connection:
            _, token = auth.create_token(
                connection,
                role="operator",
                name="bench",
                node=None,
                actor="bench",
                now=datetime.now(UTC),
            )
    made.touch(mode=0o600)
    made.write_text(json.dumps({"asked": asked, "run": run, "token": token}))
    return run, token


@contextmanager
def site(num_steps: int, num_runs: int, root: Path | None = None) -> Iterator[Site]:
    """Start everything on the state directory `root`, or on one that goes afterwards."""
    with ExitStack() as stack:
        if root is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-dashboard-")))
        run, token = make(root, num_steps, num_runs)
        control_url = f"http://127.0.0.1:{(port := free_port())}"
        settings = {"TRAINMASTER_HOME": str(root), "TRAINMASTER_LOG_LEVEL": "WARNING"}
        control = _start(
            stack,
            (sys.executable, "-m", "control", "serve"),
            {**settings, "TRAINMASTER_PORT": str(port)},
            root / "control.log",
        )
        _wait(f"{control_url}/readyz", control, root / "control.log")
        own = free_port()
        dashboard = _start(
            stack,
            (sys.executable, "-m", "dashboard"),
            {
                **settings,
                "TRAINMASTER_URL": control_url,
                "TRAINMASTER_DASHBOARD_PORT": str(own),
            },
            root / "dashboard.log",
        )
        address = f"http://127.0.0.1:{own}"
        _wait(f"{address}/_stcore/health", dashboard, root / "dashboard.log")
        yield Site(
            address, psutil.Process(dashboard.pid), psutil.Process(control.pid), token, run, root
        )


@contextmanager
def blank_page() -> Iterator[tuple[str, psutil.Process]]:
    """Serve the blank page; the block gets its address and process."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-blank-")))
        port = free_port()
        page = Path(__file__).with_name("blank.py")
        command = (sys.executable, "-m", "streamlit", "run", str(page), f"--server.port={port}")
        process = _start(stack, command, {}, root / "log")
        address = f"http://127.0.0.1:{port}"
        _wait(f"{address}/_stcore/health", process, root / "log")
        yield address, psutil.Process(process.pid)


def _fill(database: Database, num_steps: int, num_runs: int) -> str:
    scene = Scene(database, _Clock())
    scene.sync()
    for index in range(num_runs):
        run = scene.submit(name=f"earlier {index}")
        scene.begin(slots=(0,))
        _tell(database, run, 0, 50)
        scene.decide(state="stopped", attempt_end=AttemptEnd(1, "stopped", "for the bench"))
    run = scene.submit(name="long", train={"steps": 2 * num_steps, "global_batch": 8})
    scene.begin(slots=(0,))
    for first in range(0, num_steps, BLOCK):
        _tell(database, run, first, min(BLOCK, num_steps - first))
    return run


def _tell(database: Database, run: str, after: int, count: int) -> None:
    made = list(islice(steps(seed=after), DIFFERENT))
    repeats = -(-count // DIFFERENT)
    values: Mapping[str, Sequence[float]] = {
        name: ([each[name] for each in made] * repeats)[:count] for name in METRICS
    }
    numbers = list(range(after + 1, after + count + 1))
    rows = chunks.rows_of(numbers, [1.79e9 + step / 10 for step in numbers], values)
    attempts = tables.attempts
    with database.write() as connection:
        samples.append(connection, run, 1, 0, rows)
        connection.execute(
            update(attempts)
            .where(attempts.c.run == run, attempts.c.generation == 1)
            .values(last_step=after + count)
        )


@contextmanager
def growing(here: Site) -> Iterator[None]:
    """Let the long run train on while the block runs: new steps come as often as its page looks."""
    over = threading.Event()

    def train(database: Database) -> None:
        with database.read() as connection:
            c = tables.attempts.c
            reached = connection.scalar(select(c.last_step).where(c.run == here.run)) or 0
        while not over.wait(GROWS_EVERY_S):
            _tell(database, here.run, reached, GROWS_BY)
            reached += GROWS_BY

    with closing(Database(f"sqlite:///{Home(here.home).database}")) as database:
        thread = threading.Thread(target=train, args=(database,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _start(
    stack: ExitStack, command: Sequence[str], settings: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=output, stderr=output
        )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def look() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        return answers(url)

    wait_for(look, START_S, url)
