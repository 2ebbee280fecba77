"""Children of the nest whose log takes nothing: its disk is full, or its reader is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from trainmaster.errors import ExitCode
from worker.nest.forking import fork

FULL = Path("/dev/full")


def ended(body: Callable[[], int], log: Path) -> int:
    pid = fork(body, log=log, close=())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_cannot_be_printed_ends_no_rank():
    def body() -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.write("a line\n" * 10_000)
            stream.flush()
        return 3

    assert ended(body, FULL) == 3


def test_a_child_that_fails_ends_there_though_its_traceback_is_lost():
    def body() -> int:
        raise RuntimeError("told to a full disk")

    assert ended(body, FULL) == ExitCode.OUR_BUG


def test_what_can_be_printed_is_in_the_log_whatever_the_locale(tmp_path: Path):
    def body() -> int:
        print("损失 \ud800")
        print("and a warning", file=sys.stderr)
        raise SystemExit(4)

    log = tmp_path / "rank-0.log"
    assert ended(body, log) == 4
    assert log.read_text() == "损失 \\ud800\nand a warning\n"
