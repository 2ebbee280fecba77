"""The stacks of ranks: what a process that says nothing is at.

py-spy reads them from outside, of a frozen process too, where the kernel permits that; else the
rank is asked by a signal to write them itself (`worker.reporting.pulsefile`). Both are bounded in
time and in size.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainmaster.home import signal_process
from trainmaster.wire import Assignment
from worker.agent.records import RankRecord
from worker.reporting.pulsefile import STACKS_SIGNAL

LIMIT_S: Final = 5.0
"""How long py-spy may take."""
ANSWER_S: Final = 2.0
"""How long a rank that was asked may take."""
SETTLED_S: Final = 0.1
MAX_CHARS: Final = 12_000


@dataclass(frozen=True, slots=True)
class Stacks:
    """What was seen: `how` is py-spy or faulthandler, empty when neither could tell."""

    text: str
    how: str
    because: str = ""


class StackWatch:
    """Answers each call for stacks once.

    Args:
        executor: where the waiting is done.
        tell: takes an event's kind and data for the journal.
        wake: called from the executor's thread when stacks are there.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        tell: Callable[[str, dict[str, Any]], None],
        wake: Callable[[], None],
    ) -> None:
        self._executor = executor
        self._tell = tell
        self._wake = wake
        self._begun: set[tuple[str, int, int, int]] = set()
        self._futures: dict[tuple[str, int, int, int], Future[Stacks]] = {}

    def offer(
        self,
        assignments: Iterable[Assignment],
        records: Iterable[RankRecord],
        written: Callable[[RankRecord], Path],
    ) -> None:
        """Begin what is called for and not begun yet.

        Args:
            written: where a rank writes its stacks when it is asked.
        """
        alive = {
            record.key: record
            for record in records
            if record.pid is not None and record.exited_at is None
        }
        for assignment in assignments:
            for call in assignment.stacks:
                for (run, generation, rank), record in alive.items():
                    name = (run, generation, rank, call.id)
                    wanted = call.ranks is None or rank in call.ranks
                    here = (run, generation) == (assignment.run, assignment.generation)
                    if here and wanted and name not in self._begun:
                        self._begun.add(name)
                        future = self._executor.submit(take, record, written(record))
                        self._futures[name] = future
                        future.add_done_callback(lambda _: self._wake())

    def poll(self) -> None:
        """Tell of the stacks that have come."""
        for name in [name for name, future in self._futures.items() if future.done()]:
            found = self._futures.pop(name).result()
            run, generation, rank, number = name
            self._tell(
                "stacks_dumped",
                {
                    "run": run,
                    "generation": generation,
                    "rank": rank,
                    "id": number,
                    "how": found.how,
                    "text": found.text,
                    "because": found.because,
                },
            )


def take(record: RankRecord, written: Path) -> Stacks:
    """Return the stacks of a rank, or why they cannot be seen; takes `LIMIT_S` + `ANSWER_S` at
    most.
    """
    assert record.pid is not None, "a rank that has started has a process"
    refused = "py-spy is not installed beside the agent"
    tool = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if tool is not None:
        seen, refused = _from_outside(tool, record.pid)
        if seen:
            return Stacks(_bounded(seen), "py-spy")
    asked = when_asked(record, written)
    if asked:
        return Stacks(_bounded(asked), "faulthandler")
    return Stacks("", "", f"no stacks: {refused}; the rank did not answer a signal either")


def _from_outside(tool: str, pid: int) -> tuple[str, str]:
    """Return what py-spy prints, or why it cannot."""
    try:
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"py-spy: {error}"
    said = done.stderr.strip().splitlines()
    return (done.stdout, "") if done.returncode == 0 else ("", f"py-spy: {said[:1]}")


def when_asked(record: RankRecord, written: Path) -> str:
    """Return what the rank writes after the signal; empty when it writes nothing in time."""
    if record.pid is None or not written.exists():
        return ""  # it does not listen yet, and the signal would end it
    before = written.stat().st_size
    if not signal_process(record.pid, record.started, STACKS_SIGNAL):
        return ""
    deadline = time.monotonic() + ANSWER_S
    seen, since = before, time.monotonic()
    while time.monotonic() < deadline:
        size = written.stat().st_size
        if size != seen:
            seen, since = size, time.monotonic()
        elif size > before and time.monotonic() - since >= SETTLED_S:
            break
        time.sleep(0.02)
    with written.open("rb") as file:
        file.seek(before)
        return file.read(4 * MAX_CHARS).decode(errors="replace")


def _bounded(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
