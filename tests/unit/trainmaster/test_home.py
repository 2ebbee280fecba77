"""The state directory: secrets, records of processes, and what cannot be written."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.errors import UserError
from trainmaster.home import Home, identity, signal_process, write_atomically


def test_a_token_is_readable_by_its_owner_alone(tmp_path: Path):
    home = Home(tmp_path)
    assert home.token() is None
    path = home.write_token("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert home.token() == "secret"


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, b"a")
    write_atomically(path, b"b")
    assert path.read_bytes() == b"b"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_knows_whether_its_process_lives(tmp_path: Path):
    home = Home(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = home.record_process("agent:n1", process.pid, "http://h:1")
    assert record.alive
    assert home.process("agent:n1") == record
    assert record.signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not record.alive, "a zombie does not live"
    process.communicate()
    assert not record.alive
    assert not record.signal(signal.SIGKILL)
    assert home.processes() == [record]


def test_a_later_process_with_the_same_pid_is_left_alone():
    assert not signal_process(os.getpid(), "another-boot/1", signal.SIGKILL)
    assert identity(os.getpid()) is not None
    assert identity(2**22 + 1) is None


def test_taking_the_place_of_a_dead_process_counts_as_a_restart(tmp_path: Path):
    home = Home(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        home.record_process("nest", process.pid)
        process.communicate()
    assert home.record_process("nest", os.getpid()).restarts == 1
    assert home.record_process("nest", os.getpid()).restarts == 1
    home.forget_process("nest", pid=1)
    assert home.process("nest") is not None
    home.forget_process("nest", os.getpid())
    assert home.record_process("nest", os.getpid()).restarts == 0


def test_a_record_that_cannot_be_read_is_as_if_it_were_not(tmp_path: Path):
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "agent.json").write_text("{")
    assert Home(tmp_path).processes() == []


def test_a_state_directory_that_cannot_be_used_says_what_to_do(tmp_path: Path):
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(UserError, match="TRAINMASTER_HOME"):
        Home(blocker / "home").prepare()


@pytest.mark.parametrize("run", ["../up", "a/b", "", ".", "a\0b"])
def test_paths_stay_below_the_state_directory(tmp_path: Path, run: str):
    with pytest.raises(UserError):
        Home(tmp_path).attempt("n1", run, 1)
