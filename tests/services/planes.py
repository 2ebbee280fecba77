"""Real control planes on one PostgreSQL, each in a home of its own, that may be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import psycopg

from control.leadership import LOCK_KEY
from tests.services.private_server import free_port
from trainmaster.home import Home

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


def until(look: Callable[[], T], *, within_s: float = 60, what: str = "") -> T:
    """Look again until the answer is true; return it."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}; seen last: {seen!r}"
        time.sleep(0.02)


def environment(**settings: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")
    }
    return {**kept, "OMP_NUM_THREADS": "1", **settings}


class ControlPlane:
    """One control plane at a fixed address; it may end and be started again."""

    def __init__(self, folder: Path, number: int, database_url: str, **settings: str) -> None:
        self.home = Home(folder / f"control-{number}")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"control-{number}.log"
        self._environment = environment(
            TRAINMASTER_HOME=str(self.home.root),
            TRAINMASTER_PORT=str(self.port),
            TRAINMASTER_DATABASE_URL=database_url,
            **settings,
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "control", "serve"],
                env=self._environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def migrate(self) -> None:
        done = [sys.executable, "-m", "control", "migrate"]
        subprocess.run(done, env=self._environment, cwd=ROOT, check=True, timeout=120)

    def status(self, path: str = "/readyz") -> int | None:
        """The status of an answer; None when nobody answers."""
        try:
            return httpx.get(f"{self.url}{path}", trust_env=False, timeout=5).status_code
        except httpx.TransportError:
            return None

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.runs, f"it ended by itself:\n{self.tail()}"
            return self.status() == 200

        until(ready, within_s=180, what=f"{self.url} to be ready")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, within_s: float = 60) -> int:
        assert self._process is not None
        return self._process.wait(within_s)

    def kill(self) -> None:
        """End it without a word, also when it is halted."""
        if self.runs:
            self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def epochs(self) -> list[int]:
        """The epochs with which it has led so far, by its log."""
        told = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [int(each) for each in re.findall(r"leadership: leads since epoch (\d+)", told)]

    @property
    def token(self) -> str:
        token = self.home.token()
        assert token is not None
        return token


@contextmanager
def control_planes(
    folder: Path, database_url: str, num_planes: int, **settings: str
) -> Iterator[Sequence[ControlPlane]]:
    """Run so many control planes on a database, migrated first."""
    planes = [ControlPlane(folder, each, database_url, **settings) for each in range(num_planes)]
    planes[0].migrate()
    try:
        for plane in planes:
            plane.start()
        for plane in planes:
            plane.wait_ready()
        yield planes
    finally:
        for plane in planes:
            plane.kill()


def rows(database_url: str, query: str, *args: object) -> list[tuple[object, ...]]:
    """Ask the database itself."""
    dsn = database_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode(), args or None).fetchall()


def leader_pid(database_url: str) -> int | None:
    """The process that holds the lead, as PostgreSQL says; None while nobody does."""
    found = rows(
        database_url,
        "SELECT activity.application_name FROM pg_locks AS locks JOIN pg_stat_activity AS activity"
        " USING (pid) WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objid = %s AND"
        " locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        LOCK_KEY & 0xFFFFFFFF,
    )
    if not found:
        return None
    named = re.fullmatch(r"trainmaster (\d+) on .*", str(found[0][0]))
    assert named is not None, found
    return int(named[1])


def epoch(database_url: str) -> int:
    [(found,)] = rows(database_url, "SELECT epoch FROM leadership")
    assert isinstance(found, int)
    return found
