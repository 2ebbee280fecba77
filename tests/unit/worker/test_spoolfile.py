"""The rank's end of the spool: whole frames, in order, whatever the disk does."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.spool import Header, decode
from worker.reporting.spoolfile import CATCH_UP_FRAMES, MAX_TEXT_CHARS, SpoolFile

HEADER = Header("r/1/0", ("loss", "lr"))


@contextmanager
def disk_full_beyond(num_bytes: int) -> Iterator[None]:
    """A real limit of the kernel: a write across it is cut short, one beyond it fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_begins_with_its_header_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    for _ in range(2):
        spool = SpoolFile(path, HEADER)
        spool.event("rank_ready", step=0)
        spool.close()
    frames = decode(path.read_bytes(), offset=0, header=None)
    assert frames.header == HEADER
    assert [event["kind"] for event in frames.events] == ["rank_ready"] * 2
    assert path.read_bytes().count(b"r/1/0") == 1


def test_rows_and_events_come_back_as_written(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path / "spool", HEADER)
    spool.row(3, 12.5, [1.0, float("nan")])
    spool.event("step_skipped", step=3, grad_norm=float("nan"), kind="data may use any key")
    frames = decode((tmp_path / "spool").read_bytes(), offset=0, header=None)
    [(step, at, values)] = frames.rows
    assert (step, at, values[0]) == (3, 12.5, 1.0)
    [event] = frames.events
    assert event["data"] == {"step": 3, "grad_norm": "NaN", "kind": "data may use any key"}


def test_a_long_text_keeps_its_end(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path / "spool", HEADER)
    spool.event("rank_failed", traceback="x" * 2_000_000 + "the end")
    [event] = decode((tmp_path / "spool").read_bytes(), offset=0, header=None).events
    text = event["data"]["traceback"]  # type: ignore[index]
    assert len(text) == MAX_TEXT_CHARS
    assert text.endswith("the end")


def test_what_a_full_disk_refuses_is_written_later_in_order_and_never_torn(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = SpoolFile(path, HEADER)
    spool.row(1, 1.0, [1.0, 1.0])
    size = path.stat().st_size
    with disk_full_beyond(size + 10):
        spool.row(2, 2.0, [2.0, 2.0])
        assert path.stat().st_size == size, "a frame that was cut short is taken back"
        spool.row(3, 3.0, [3.0, 3.0])
    spool.row(4, 4.0, [4.0, 4.0])
    frames = decode(path.read_bytes(), offset=0, header=None)
    assert [step for step, _, _ in frames.rows] == [1, 2, 3, 4]


def test_after_a_full_disk_no_step_writes_more_than_a_few_of_what_had_to_wait(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spool"
    spool = SpoolFile(path, HEADER)
    with disk_full_beyond(path.stat().st_size):
        for step in range(1, 3 * CATCH_UP_FRAMES + 1):
            spool.row(step, 1.0, [1.0, 1.0])

    def steps() -> list[int]:
        return [step for step, _, _ in decode(path.read_bytes(), offset=0, header=None).rows]

    assert steps() == []
    spool.row(3 * CATCH_UP_FRAMES + 1, 1.0, [1.0, 1.0])
    assert steps() == list(range(1, CATCH_UP_FRAMES + 1))
    spool.event("rank_finished")
    assert len(steps()) == 2 * CATCH_UP_FRAMES
    spool.close()
    frames = decode(path.read_bytes(), offset=0, header=None)
    assert [step for step, _, _ in frames.rows] == list(range(1, 3 * CATCH_UP_FRAMES + 2))
    assert [event["kind"] for event in frames.events] == ["rank_finished"]


def test_a_killed_process_has_lost_nothing_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    child = os.fork()
    if child == 0:
        try:
            spool = SpoolFile(path, HEADER)
            for step in range(1, 51):
                spool.row(step, 1.0, [1.0, 1.0])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(decode(path.read_bytes(), offset=0, header=None).rows) == 50
