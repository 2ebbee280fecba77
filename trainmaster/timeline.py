"""The measured timeline of a step: what a rank did when, as it travels and is stored. Pure codec,
and the ratios that follow from it.

An action has a kind, the stage and micro-batch that it belongs to (or the bucket of gradients), and
its start and end. Times are nanoseconds since the rank's `origin`, an instant on its node's steady
clock; how far that clock is from rank 0's was measured, and how wrong that may be is told
(`Clock`).

The bytes: `<u32 length of the head><head as JSON><zlib of the columns>`; columns one after the
other, little-endian: kind (u8), stage (i16), number (i32), start, duration and bytes (i64 each).
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trainmaster.errors import IntegrityError

KINDS: Final = (
    "forward",
    "backward",
    "input",
    "weights",
    "loss",
    "send_activation",
    "send_gradient",
    "receive_activation",
    "receive_gradient",
    "wait_activation",
    "wait_gradient",
    "wait_send",
    "wait_reduce",
    "reduce",
    "share",
    "status",
    "optimizer",
    "data",
    "checkpoint",
    "pass",
    "post",
)
"""What an action may be; docs/timeline.md says what each means. Only ever added to: a kind is
stored as its place in this list.
"""
COMPUTE: Final = frozenset({"forward", "backward", "input", "weights", "loss"})
EXPOSED: Final = frozenset(
    {
        *("send_activation", "send_gradient"),
        *("wait_activation", "wait_gradient", "wait_send", "wait_reduce"),
        *("post", "share", "status"),
    }
)
"""In these a rank does nothing but communicate."""
IN_FLIGHT: Final = frozenset({"receive_activation", "receive_gradient", "reduce"})
"""These go on beside others: the rank does something else meanwhile."""

NONE: Final = -1
"""The stage or number of an action that has none."""
MAX_ACTIONS: Final = 20_000
"""Of a longer step the rest is not recorded, and how much that is is told."""

_LENGTH: Final = struct.Struct("<I")
_COLUMNS: Final = (("B", 1), ("h", 2), ("i", 4), ("q", 8), ("q", 8), ("q", 8))
_ROW_BYTES: Final = sum(width for _, width in _COLUMNS)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
_DAMAGE: Final = (struct.error, zlib.error, ValueError, KeyError, TypeError, IndexError)


class Action(NamedTuple):
    """One action of a rank. `number` is the micro-batch, counted on through the passes of a step,
    or the bucket; both it and `stage` may be `NONE`. `start_ns` and `end_ns` count from the origin.
    """

    kind: str
    stage: int
    number: int
    start_ns: int
    end_ns: int
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """How a rank's clock stands to rank 0's: add `offset_s` to the former for the latter.

    Attributes:
        error_s: the true offset differs by at most so much.
        drift: seconds that the offset grows by in a second, since the generation began.
    """

    offset_s: float = 0.0
    error_s: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one rank did in one step.

    Attributes:
        at: the instant of the origin, seconds since the epoch, by this node's calendar clock.
        origin_s: the same instant on its steady clock.
        length_ns: the step's wall time.
        dropped: actions beyond `MAX_ACTIONS`.
    """

    step: int
    at: float
    origin_s: float
    length_ns: int
    clock: Clock
    actions: tuple[Action, ...]
    dropped: int = 0

    @property
    def shift_s(self) -> float:
        """The origin on rank 0's clock."""
        return self.origin_s + self.clock.offset_s


def encode(timeline: Timeline) -> bytes:
    """Return the bytes of a timeline."""
    actions = timeline.actions[:MAX_ACTIONS]
    clock = timeline.clock
    head = {
        "step": timeline.step,
        "at": timeline.at,
        "origin_s": timeline.origin_s,
        "length_ns": timeline.length_ns,
        "clock": [clock.offset_s, clock.error_s, clock.drift],
        "count": len(actions),
        "dropped": timeline.dropped + len(timeline.actions) - len(actions),
    }
    columns = (
        [_CODES[each.kind] for each in actions],
        [each.stage for each in actions],
        [each.number for each in actions],
        [each.start_ns for each in actions],
        [each.end_ns - each.start_ns for each in actions],
        [each.num_bytes for each in actions],
    )
    told = json.dumps(head).encode()
    packed = b"".join(
        _little(array(kind, column)).tobytes()
        for (kind, _), column in zip(_COLUMNS, columns, strict=True)
    )
    return _LENGTH.pack(len(told)) + told + zlib.compress(packed, 6)


def decode(data: bytes) -> Timeline:
    """Read the bytes of a timeline.

    Raises:
        IntegrityError: they are not those of one.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        head: dict[str, Any] = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        count = int(head["count"])
        if not 0 <= count <= MAX_ACTIONS:
            raise ValueError(f"{count} actions")
        size = count * _ROW_BYTES
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(data[_LENGTH.size + length :], size + 1)
        if len(packed) != size or not unpacker.eof:
            raise ValueError(f"{len(packed)} bytes for {count} actions")
        found = Timeline(
            step=int(head["step"]),
            at=float(head["at"]),
            origin_s=float(head["origin_s"]),
            length_ns=int(head["length_ns"]),
            clock=Clock(*map(float, head["clock"])),
            actions=tuple(_actions(packed, count)),
            dropped=int(head["dropped"]),
        )
    except _DAMAGE as error:
        raise IntegrityError(f"a timeline cannot be read: {error}") from error
    if found.step < 1 or found.length_ns < 0 or not 0 <= found.at < 1e11:
        raise IntegrityError("a timeline cannot be read: its head makes no sense")
    return found


def _actions(packed: bytes, count: int) -> Iterable[Action]:
    columns = []
    start = 0
    for kind, width in _COLUMNS:
        column = array(kind)
        column.frombytes(packed[start : start + width * count])
        columns.append(_little(column))
        start += width * count
    for code, stage, number, began, took, num_bytes in zip(*columns, strict=True):
        yield Action(KINDS[code], stage, number, began, began + took, num_bytes)


def _little(column: array[Any]) -> array[Any]:
    """Return the column in, or from, little-endian order."""
    if sys.byteorder == "big":
        column.byteswap()
    return column


@dataclass(frozen=True, slots=True)
class Ratios:
    """Where a rank's step went. The four ratios of the step add up to 1.

    Attributes:
        bubble_ratio: share of the pipeline's span in which the rank did no forward or backward;
            None where it has none.
        exposed_comm_ratio: share of the step in which it did nothing but communicate.
        idle_ratio: share of the step in which it did neither that nor compute.
    """

    bubble_ratio: float | None
    compute_ratio: float
    optimizer_ratio: float
    exposed_comm_ratio: float
    idle_ratio: float


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return how much lies in at least one of the spans (start, end)."""
    total = 0
    reached: int | None = None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total += max(0, end - start)
            reached = max(start, end)
        elif end > reached:
            total += end - reached
            reached = end
    return total


def ratios(timeline: Timeline, span_ns: int | None) -> Ratios:
    """Return where a rank's step went.

    Args:
        span_ns: how long the passes of its pipeline took (`span_of`).
    """
    whole = max(1, timeline.length_ns)

    def within(kinds: frozenset[str]) -> int:
        # What overlaps counts once; what began before the step, only from there.
        return covered(
            (max(0, each.start_ns), min(whole, each.end_ns))
            for each in timeline.actions
            if each.kind in kinds and each.end_ns > 0
        )

    compute = within(COMPUTE)
    optimizer = within(frozenset({"optimizer"}))
    exposed = within(COMPUTE | EXPOSED | {"optimizer"}) - within(COMPUTE | {"optimizer"})
    return Ratios(
        bubble_ratio=max(0.0, 1 - compute / span_ns) if span_ns else None,
        compute_ratio=compute / whole,
        optimizer_ratio=optimizer / whole,
        exposed_comm_ratio=exposed / whole,
        idle_ratio=max(0.0, 1 - (compute + optimizer + exposed) / whole),
    )


def span_of(pipeline: Sequence[Timeline]) -> int | None:
    """Return for how long the ranks of one pipeline were at their passes, in nanoseconds on one
    clock: from the first forward of each pass to its last backward. None without any.
    """
    total = 0
    passes = [
        sorted(
            (each.start_ns + _ns(timeline), each.end_ns + _ns(timeline))
            for each in timeline.actions
            if each.kind == "pass"
        )
        for timeline in pipeline
    ]
    for number in range(max((len(each) for each in passes), default=0)):
        began = min(each[number][0] for each in passes if len(each) > number)
        ended = max(each[number][1] for each in passes if len(each) > number)
        inside = [
            (start, end)
            for timeline in pipeline
            for start, end in _compute_on_one_clock(timeline)
            if start >= began and end <= ended
        ]
        if inside:
            total += max(end for _, end in inside) - min(start for start, _ in inside)
    return total or None


def _compute_on_one_clock(timeline: Timeline) -> Iterable[tuple[int, int]]:
    shift = _ns(timeline)
    for each in timeline.actions:
        if each.kind in COMPUTE:
            yield each.start_ns + shift, each.end_ns + shift


def _ns(timeline: Timeline) -> int:
    return round(timeline.shift_s * 1e9)


@dataclass(frozen=True, slots=True)
class Waits:
    """What a rank waited for messages, in seconds: for what had not been sent yet, for what was
    under way, and for whoever was to ask for what it sent.
    """

    unsent_s: float
    under_way_s: float
    unasked_s: float


def waits(timeline: Timeline, pipeline: Iterable[Timeline]) -> Waits:
    """Return how a rank's waits for messages divide, by when each was sent on one clock.

    Args:
        pipeline: the ranks that it exchanges messages with.
    """
    sent: dict[tuple[str, int, int], int] = {}
    for other in pipeline:
        for each in other.actions:
            if each.kind == "send_activation":
                sent["wait_activation", each.stage + 1, each.number] = each.start_ns + _ns(other)
            elif each.kind == "send_gradient":
                sent["wait_gradient", each.stage - 1, each.number] = each.start_ns + _ns(other)
    unsent = under_way = unasked = 0
    for each in timeline.actions:
        if each.kind == "wait_send":
            unasked += each.end_ns - each.start_ns
        at = sent.get((each.kind, each.stage, each.number))
        if at is None:
            continue
        waited = each.end_ns - each.start_ns
        before = min(waited, max(0, at - _ns(timeline) - each.start_ns))
        unsent += before
        under_way += waited - before
    return Waits(unsent / 1e9, under_way / 1e9, unasked / 1e9)
