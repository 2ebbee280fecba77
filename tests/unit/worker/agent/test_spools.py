"""Spools: torn tails, cursors that go backwards, damage, and bounds."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.errors import IntegrityError
from trainmaster.facts import Batch, Event
from trainmaster.spool import MISSING, Header, encode_event, encode_header, encode_row
from worker.agent.journal import Journal, journal_events, journal_files
from worker.agent.spools import COSTLY_SHARE, MAX_REFUSALS, STREAM_BYTES, SpoolReader, Spools

HEADER = Header("r/1/0", ("loss", "grad_norm"))
LAYOUT = HEADER.row_struct()


def event(kind: str, **data: object) -> bytes:
    told = Event(kind=kind, at="2026-01-01T00:00:00Z", data=data)
    return encode_event(told.model_dump_json().encode())


def row(step: int) -> bytes:
    return encode_row(LAYOUT, step, 1.5, (float(step), MISSING))


def spool_of(path: Path, steps: int) -> bytes:
    data = encode_header(HEADER) + b"".join(row(step) for step in range(1, steps + 1))
    path.write_bytes(data)
    return data


def store(
    spools: Spools, cursors: dict[str, int], *, limit: int = 1 << 20, protocol: int = 1
) -> list[Batch]:
    """Play a control plane that stores what begins at its cursor; return the batches sent."""
    sent = spools.batches(protocol=protocol, limit=limit)
    for batch in sent:
        if cursors.setdefault(batch.stream, 0) == batch.from_offset:
            cursors[batch.stream] = batch.to_offset
    spools.accept(sent, cursors)
    return sent


def steps_of(batches: list[Batch]) -> list[int]:
    return [step for batch in batches if batch.samples for step in batch.samples.steps]


@settings(deadline=None)
@given(cut=st.integers(0, 400), start=st.integers(0, 5))
def test_a_torn_tail_is_left_until_it_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, start: int
):
    path = tmp_path_factory.mktemp("spool") / "s"
    whole = spool_of(path, 5)
    path.write_bytes(whole[:cut])
    spools, cursors = Spools(), {}
    spools.add("r/1/0", path, cursor=0, tail=True)
    seen = steps_of(store(spools, cursors))
    assert spools.stored("r/1/0")
    assert spools.settled("r/1/0")
    path.write_bytes(whole)
    seen += steps_of(store(spools, cursors))
    assert seen == [1, 2, 3, 4, 5]
    assert cursors["r/1/0"] == len(whole)


def test_a_cursor_that_goes_backwards_is_obeyed(tmp_path: Path):
    path = tmp_path / "s"
    spool_of(path, 5)
    spools, cursors = Spools(), {}
    spools.add("r/1/0", path, cursor=0, tail=False)
    store(spools, cursors)
    cursors["r/1/0"] = len(encode_header(HEADER)) + 2 * len(row(1))
    assert store(spools, cursors) == [], "nobody has asked yet"
    spools.ask_all()
    [question] = store(spools, cursors)
    assert question.from_offset == question.to_offset
    assert steps_of(store(spools, cursors)) == [3, 4, 5]


def test_an_agent_that_knows_no_cursor_asks_first(tmp_path: Path):
    path = tmp_path / "s"
    data = spool_of(path, 5)
    spools, cursors = Spools(), {"r/1/0": len(data) - len(row(5))}
    spools.add("r/1/0", path, cursor=None, tail=False)
    assert not spools.stored("r/1/0")
    [question] = store(spools, cursors)
    assert (question.from_offset, question.to_offset, question.samples) == (0, 0, None)
    assert steps_of(store(spools, cursors)) == [5]


def test_a_reader_that_starts_in_the_middle_knows_the_metrics(tmp_path: Path):
    path = tmp_path / "s"
    data = spool_of(path, 3)
    frames = SpoolReader(path).read(len(data) - len(row(3)), 1000)
    assert frames.header == HEADER
    assert frames.rows[0][0] == 3


def test_missing_is_null_and_nan_stays_nan(tmp_path: Path):
    path = tmp_path / "s"
    path.write_bytes(encode_header(HEADER) + encode_row(LAYOUT, 1, 2.0, (math.nan, MISSING)))
    spools = Spools()
    spools.add("r/1/0", path, cursor=0, tail=False)
    [batch] = spools.batches(protocol=1)
    assert batch.samples is not None
    assert math.isnan(batch.samples.values["loss"][0] or 0.0)
    assert batch.samples.values["grad_norm"] == [None]
    again = Batch.model_validate_json(batch.model_dump_json())
    assert again.samples is not None
    assert math.isnan(again.samples.values["loss"][0] or 0.0)


def test_packed_samples_are_the_bits_that_the_rank_wrote(tmp_path: Path):
    path = tmp_path / "s"
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0007))[0]
    rows = [(math.nan, MISSING), (-math.inf, other_nan), (-0.0, 5e-324)]
    path.write_bytes(
        encode_header(HEADER)
        + b"".join(encode_row(LAYOUT, step, step / 2, row) for step, row in enumerate(rows, 1))
    )
    spools = Spools()
    spools.add("r/1/0", path, cursor=0, tail=False)
    [batch] = spools.batches(protocol=2)
    assert batch.samples is None
    again = Batch.model_validate_json(batch.model_dump_json()).packed
    assert again is not None
    assert (again.steps, again.at) == (struct.pack("<3q", 1, 2, 3), struct.pack("<3d", 0.5, 1, 1.5))
    assert again.values == {
        name: struct.pack("<3d", *column)
        for name, column in zip(HEADER.metrics, zip(*rows, strict=True), strict=True)
    }


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize(("step", "at"), [(0, 1.0), (2**53 + 1, 1.0), (1, -1.0), (1, math.nan)])
def test_what_no_control_plane_takes_is_damage_of_its_stream_alone(
    tmp_path: Path, protocol: int, step: int, at: float
):
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.write_bytes(encode_header(HEADER) + encode_row(LAYOUT, step, at, (1.0, 1.0)))
    spool_of(good, 2)
    spools = Spools()
    for path in (bad, good):
        spools.add(path.name, path, cursor=0, tail=False)
    assert [batch.stream for batch in spools.batches(protocol=protocol)] == ["good"]
    assert list(spools.damaged()) == ["bad"]


def test_of_many_events_a_sync_carries_less(tmp_path: Path):
    path = tmp_path / "s"
    path.write_bytes(b"".join(event("told", text="x" * 200) for _ in range(3000)))
    spools = Spools()
    spools.add("agent:1", path, cursor=0, tail=False)
    [batch] = spools.batches(protocol=2)
    assert batch.to_offset <= STREAM_BYTES // COSTLY_SHARE


def test_a_sync_is_bounded_and_streams_take_turns(tmp_path: Path):
    spools, cursors = Spools(), {}
    for rank in range(3):
        path = tmp_path / f"s{rank}"
        spool_of(path, 1000)
        spools.add(f"r/1/{rank}", path, cursor=0, tail=False)
    first = store(spools, cursors, limit=2000)
    assert sum(batch.to_offset - batch.from_offset for batch in first) <= 2000 + 2 * len(row(1))
    order = [store(spools, cursors, limit=2000)[0].stream for _ in range(3)]
    assert len(set(order)) == 3
    assert spools.lag() > 0


def test_a_frame_larger_than_the_bound_is_read_whole(tmp_path: Path):
    path = tmp_path / "s"
    path.write_bytes(event("told", text="x" * 500_000))
    frames = SpoolReader(path).read(0, 1000)
    assert frames.end_offset == path.stat().st_size


def test_damage_is_passed_over_and_told(tmp_path: Path):
    path = tmp_path / "s"
    data = bytearray(spool_of(path, 5))
    data[-len(row(5)) - 3] ^= 1
    path.write_bytes(data)
    spools, cursors = Spools(), {}
    spools.add("r/1/0", path, cursor=0, tail=True)
    assert steps_of(store(spools, cursors)) == [1, 2, 3]
    assert steps_of(store(spools, cursors)) == [5]
    assert "damaged" in spools.damaged()["r/1/0"]
    assert spools.settled("r/1/0")
    assert [len(frames.rows) for _, frames in spools.tail()] == [3, 1]


def test_damage_at_the_end_holds_nothing_up_until_something_follows_it(tmp_path: Path):
    path = tmp_path / "s"
    path.write_bytes(spool_of(path, 3) + b"\xff" * 5000)
    spools, cursors = Spools(), {}
    spools.add("r/1/0", path, cursor=0, tail=True)
    assert steps_of(store(spools, cursors)) == [1, 2, 3]
    assert store(spools, cursors) == []
    assert "damaged" in spools.damaged()["r/1/0"]
    assert spools.settled("r/1/0")
    assert [len(frames.rows) for _, frames in spools.tail()] == [3]
    assert list(spools.tail()) == []
    with pytest.raises(IntegrityError):
        SpoolReader(path).read(cursors["r/1/0"], 1000)
    with path.open("ab") as file:
        file.write(row(4) + row(5))
    assert not spools.settled("r/1/0")
    assert steps_of(store(spools, cursors) + store(spools, cursors)) == [4, 5]
    assert sum(len(frames.rows) for _, frames in spools.tail()) == 2


def test_a_refused_stream_holds_nothing_up_for_ever(tmp_path: Path):
    path = tmp_path / "s"
    spool_of(path, 5)
    spools = Spools()
    spools.add("r/1/0", path, cursor=0, tail=True)
    for _ in range(MAX_REFUSALS):
        assert not spools.settled("r/1/0")
        spools.accept(spools.batches(protocol=1), {})
    assert spools.settled("r/1/0")


def test_the_tail_shows_each_frame_once_and_old_streams_never(tmp_path: Path):
    new, old = tmp_path / "new", tmp_path / "old"
    spool_of(new, 2)
    spool_of(old, 2)
    spools = Spools()
    spools.add("new", new, cursor=0, tail=True)
    spools.add("old", old, cursor=0, tail=False)
    assert [(name, len(frames.rows)) for name, frames in spools.tail()] == [("new", 2)]
    with new.open("ab") as file:
        file.write(row(3) + event("rank_finished"))
    [(_, frames)] = spools.tail()
    assert ([step for step, _, _ in frames.rows], len(frames.events)) == ([3], 1)
    assert list(spools.tail()) == []


def test_a_journal_is_begun_anew_in_each_life(tmp_path: Path):
    for boot in ("a", "b"):
        journal = Journal(tmp_path)
        journal.append("node_started", {"boot": boot})
        journal.close()
    assert [each["data"]["boot"] for each in journal_events(tmp_path)] == ["a", "b"]
    streams = list(journal_files(tmp_path))
    assert len(streams) == 2
    assert streams[1] == journal.stream
    assert all(stream.startswith("agent:") for stream in streams)


def test_a_large_journal_gives_way_to_a_new_one(tmp_path: Path):
    journal = Journal(tmp_path)
    first = journal.stream
    for _ in range(9):
        journal.append("chore_done", {"text": "x" * 500_000})
    journal.append("chore_done", {"last": True})
    assert journal.stream != first
    assert len(list(journal_events(tmp_path))) == 10
    journal.close()
