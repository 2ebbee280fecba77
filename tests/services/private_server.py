"""What the private servers of the tests share: a free port, and a child that dies with us."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest


def absent(what: str) -> NoReturn:
    """Fail in CI, where it should have been installed; skip with a reason elsewhere."""
    reason = f"{what} is not installed (scripts/system-packages tests installs it)"
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """Return a TCP port nobody listens on right now; somebody may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PrivateServer:
    """A server process of the test session. It is killed when the session is, however that dies."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.log = log
        self._stop_signal = stop_signal
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*bound_to_us(user, stop_signal), *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float = 30.0) -> bool:
        """Return True once the server is ready; False when it ended first (a taken port)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            if is_ready():
                return True
            time.sleep(0.02)
        self.stop()
        raise TimeoutError(
            f"{self._process.args!r} is not ready after {timeout_s} s:\n{self.tail()}"
        )

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(self._stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def bound_to_us(user: str | None, stop_signal: signal.Signals) -> list[str]:
    """Return what to put before a command so that it is sent `stop_signal` when we die."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        assert user is None, "changing the user needs setpriv (util-linux)"
        return []
    change = ["--reuid", user, "--regid", user, "--init-groups"] if user else []
    return [setpriv, *change, "--pdeathsig", stop_signal.name.removeprefix("SIG"), "--"]
