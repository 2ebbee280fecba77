"""The parent of all parts, with real processes that stand for them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainmaster.cli.processes import process_rows, stop_all
from trainmaster.cli.supervisor import Part, Supervisor
from trainmaster.home import Home

FOREVER = "import signal; signal.pause()"
STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('deaf', flush=True); [signal.pause() for _ in iter(int, 1)]"
)


def part(name: str, code: str = FOREVER) -> Part:
    command = [sys.executable, "-c", code]
    return Part(name, command, os.environ, Path.cwd(), f"http://127.0.0.1:1/{name}")


def until(look: Callable[[], bool], supervisor: Supervisor | None = None) -> None:
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline
        if supervisor is not None:
            supervisor.turn()
        time.sleep(0.02)


class Wall:
    """Time that can be pushed forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def supervisor(home: Home, said: list[str], wall: Wall) -> Iterator[Supervisor]:
    made = Supervisor(home, restart=True, say=said.append, clock=wall)
    yield made
    wall.ahead = 0.0
    made.stop(grace_s=2.0)


def pid_of(home: Home, name: str) -> int | None:
    record = home.process(name)
    return record.pid if record is not None and record.alive else None


def test_a_killed_part_is_started_again_after_its_pause(home, supervisor, said, wall):
    supervisor.start(part("control"))
    first = pid_of(home, "control")
    os.kill(first, signal.SIGKILL)
    until(lambda: bool(said), supervisor)
    assert said == ["control was killed by SIGKILL; starting it again in 1 s"]
    supervisor.turn()
    assert pid_of(home, "control") is None, "not before the pause is over"
    wall.ahead += 1.1
    until(lambda: pid_of(home, "control") is not None, supervisor)
    assert pid_of(home, "control") != first
    [row] = [row for row in process_rows(home) if row["name"] == "control"]
    assert row["restarts"] == 1
    assert row["address"] == "http://127.0.0.1:1/control"


def test_one_that_ended_in_good_order_is_a_restart_too(home, supervisor, said, wall):
    supervisor.start(part("control"))
    os.kill(pid_of(home, "control"), signal.SIGTERM)
    home.forget_process("control")  # as a part does that ends by itself
    until(lambda: bool(said), supervisor)
    wall.ahead += 1.1
    until(lambda: pid_of(home, "control") is not None, supervisor)
    assert home.process("control").restarts == 1


def test_without_supervision_a_dead_part_stays_dead_and_the_others_go_on(home, said):
    supervisor = Supervisor(home, restart=False, say=said.append)
    try:
        supervisor.start(part("control"))
        supervisor.start(part("agent"))
        os.kill(pid_of(home, "control"), signal.SIGKILL)
        until(lambda: bool(said), supervisor)
        assert "stays down" in said[0]
        assert pid_of(home, "agent") is not None
    finally:
        supervisor.stop(grace_s=2.0)


@contextmanager
def no_room() -> Iterator[None]:
    """Let no file grow for as long as the block runs, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_nothing_ends_and_parts_are_written_down_once_there_is_room(home, wall):
    def say(sentence: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    supervisor = Supervisor(home, restart=True, say=say, clock=wall)
    try:
        supervisor.start(part("agent"))
        supervisor.start(part("control"))
        agent, killed = pid_of(home, "agent"), pid_of(home, "control")
        os.kill(killed, signal.SIGKILL)
        with no_room():
            until(lambda: supervisor.died("control") is not None)
            supervisor.turn()
            wall.ahead += 1.1
            supervisor.turn()
            assert supervisor.died("control") is None
            assert pid_of(home, "control") is None, "it runs, and there was no room to say so"
        until(lambda: pid_of(home, "control") is not None, supervisor)
        assert pid_of(home, "control") != killed
        assert pid_of(home, "agent") == agent
    finally:
        wall.ahead = 0.0
        supervisor.stop(grace_s=2.0)


def test_one_that_took_the_place_of_a_dead_part_is_left_alone(home, supervisor, said, wall):
    supervisor.start(part("control"))
    os.kill(pid_of(home, "control"), signal.SIGKILL)
    until(lambda: bool(said), supervisor)
    stranger = subprocess.Popen([sys.executable, "-c", FOREVER])
    try:
        home.record_process("control", stranger.pid)
        wall.ahead += 2.0
        supervisor.turn()
        assert pid_of(home, "control") == stranger.pid
        assert said[1:] == []
    finally:
        stranger.kill()
        stranger.wait()
    wall.ahead += 2.0
    until(lambda: pid_of(home, "control") not in {None, stranger.pid}, supervisor)


def test_stopping_ends_even_a_part_that_does_not_listen(home, supervisor):
    supervisor.start(part("agent", STUBBORN))
    until(lambda: "deaf" in home.log("agent").read_text())
    pid = pid_of(home, "agent")
    supervisor.stop(grace_s=0.3)
    assert not Path(f"/proc/{pid}").exists()
    assert home.process("agent") is None


def test_what_a_part_prints_is_in_its_log(home, supervisor):
    supervisor.start(part("dashboard", "print('hello'); raise SystemExit(3)"))
    until(lambda: supervisor.died("dashboard") is not None)
    assert supervisor.died("dashboard") == "ended with status 3"
    assert home.log("dashboard").read_text() == "hello\n"


def test_parts_end_with_their_parent(tmp_path: Path):
    parent_code = f"""
import os, signal, sys
from pathlib import Path
from trainmaster.cli.supervisor import Part, Supervisor
from trainmaster.home import Home
supervisor = Supervisor(Home(Path({str(tmp_path)!r})), restart=True, say=print)
command = [sys.executable, "-c", {FOREVER!r}]
supervisor.start(Part("agent", command, os.environ, Path.cwd()))
print("up", flush=True)
signal.pause()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "up\n"
        home = Home(tmp_path)
        # The child asks for its tether before it becomes the part.
        until(
            lambda: b"signal.pause" in Path(f"/proc/{pid_of(home, 'agent')}/cmdline").read_bytes()
        )
        until(lambda: b"tether" not in Path(f"/proc/{pid_of(home, 'agent')}/cmdline").read_bytes())
        parent.kill()
        parent.wait()
    until(lambda: pid_of(home, "agent") is None)


def test_down_ends_whatever_is_written_down_and_nothing_else(home: Home):
    mine = subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
    other = subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
    try:
        home.record_process("agent", mine.pid)
        assert stop_all(home) == ["agent"]
        assert mine.wait(5) == -signal.SIGTERM
        assert other.poll() is None
        assert stop_all(home) == []
        assert all(row["pid"] is None for row in process_rows(home))
    finally:
        other.kill()
        other.wait()
