"""The spool's format: frames appended to a file by one writer, read by any number of readers. Pure
codec; files are opened elsewhere.

A frame is `<u32 payload length><u32 crc32 of kind and payload><u8 kind><payload>`, little-endian.
The first frame of a file is its header: JSON that names the stream and the metrics of its sample
rows. Each append is one write, so a crash can tear only the last frame, and a reader stops before
a torn frame. A cursor is a byte offset between two frames.

Kinds: H header (JSON), E event (JSON as `facts.Event`), S sample row: `<i64 step><f64 at><f64
    value>...`, values in the header's order, NaN where a metric was not measured is told apart
    from a measured NaN by its payload (`MISSING`); T timeline of a step, as `trainmaster.timeline`
    encodes it. A reader passes over kinds that it does not know.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.errors import IntegrityError

_PREFIX = struct.Struct("<IIc")
_KIND = re.compile(rb"[HEST]")
_NUMBER_BYTES = 8
MAX_PAYLOAD_BYTES = 1 << 20

MISSING: float = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
"""The quiet NaN that stands for "not measured"."""
MISSING_BYTES = struct.pack("<d", MISSING)
_ROW_CRC = zlib.crc32(b"S")


@dataclass(frozen=True, slots=True)
class Header:
    """The first frame: whose facts these are, and the metrics of the sample rows in order."""

    stream: str
    metrics: tuple[str, ...] = ()

    def row_struct(self) -> struct.Struct:
        """Return the layout of a sample row."""
        return struct.Struct(f"<qd{len(self.metrics)}d")


@dataclass(slots=True)
class Frames:
    """What was decoded, and where the next frame begins.

    Attributes:
        events: as parsed JSON.
        samples: the payloads of the sample rows one after the other, each as long as the header
            says.
        timelines: still encoded.
    """

    end_offset: int
    header: Header | None = None
    events: list[dict[str, object]] = field(default_factory=list)
    samples: bytes = b""
    timelines: list[bytes] = field(default_factory=list)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the sample rows."""
        return self.header.metrics if self.header is not None else ()

    @property
    def num_rows(self) -> int:
        """How many sample rows there are."""
        return len(self.samples) // (_NUMBER_BYTES * (2 + len(self.metrics)))

    @property
    def last_step(self) -> int | None:
        """The step of the last sample row."""
        if not self.samples:
            return None
        start = len(self.samples) - _NUMBER_BYTES * (2 + len(self.metrics))
        return int(struct.unpack_from("<q", self.samples, start)[0])

    @property
    def rows(self) -> list[tuple[int, float, tuple[float, ...]]]:
        """The sample rows as (step, at, values)."""
        if self.header is None:
            return []
        layout = self.header.row_struct()
        return [(step, at, tuple(row)) for step, at, *row in layout.iter_unpack(self.samples)]

    def columns(self) -> list[bytes]:
        """Return the sample rows by column: steps, instants, and each metric in the header's order;
        none when there are no rows. See `numbers`.
        """
        words = array("Q", self.samples)  # only moved, never looked at: of any byte order
        width = 2 + len(self.metrics)
        return [words[start::width].tobytes() for start in range(width)] if words else []


def numbers(kind: str, column: bytes) -> tuple[Any, ...]:
    """Return the numbers of a column: `kind` is "q" for steps, "d" for all others."""
    return struct.unpack(f"<{len(column) // _NUMBER_BYTES}{kind}", column)


def last_measured(column: bytes) -> float | None:
    """Return the last number of a column that is not the mark for "not measured"."""
    for start in range(len(column) - _NUMBER_BYTES, -1, -_NUMBER_BYTES):
        word = column[start : start + _NUMBER_BYTES]
        if word != MISSING_BYTES:
            return float(struct.unpack("<d", word)[0])
    return None


def missing_in(column: bytes) -> list[bool]:
    """Return for each number of a column whether it is the mark for "not measured"."""
    if MISSING_BYTES not in column:
        return [False] * (len(column) // _NUMBER_BYTES)
    (mark,) = struct.unpack("<Q", MISSING_BYTES)
    return [word == mark for word in numbers("Q", column)]


def is_missing(value: float) -> bool:
    """Return whether `value` is the mark for "not measured" rather than a measured NaN."""
    return value != value and struct.pack("<d", value) == MISSING_BYTES


def encode_header(header: Header) -> bytes:
    """Return the first frame of a file."""
    return _frame(
        b"H", json.dumps({"stream": header.stream, "metrics": list(header.metrics)}).encode()
    )


def encode_event(event_json: bytes) -> bytes:
    """Return a frame for an event already written as JSON."""
    return _frame(b"E", event_json)


def encode_timeline(packed: bytes) -> bytes:
    """Return a frame for the timeline of a step."""
    return _frame(b"T", packed)


def encode_row(layout: struct.Struct, step: int, at: float, values: Sequence[float]) -> bytes:
    """Return a frame for one sample row; `layout` comes from `Header.row_struct`."""
    # Written out, not by `_frame`: a training step waits for this, with caches cold.
    payload = layout.pack(step, at, *values)
    return _PREFIX.pack(len(payload), zlib.crc32(payload, _ROW_CRC), b"S") + payload


def decode(data: bytes, *, offset: int, header: Header | None, max_frames: int = 1 << 30) -> Frames:
    """Decode the whole frames of `data`, which was read at `offset` of a file whose header is
    `header`.

    A torn last frame is left for the next read, and so is a header that stands behind sample rows.

    Raises:
        IntegrityError: a whole frame whose checksum is wrong, or a sample row that no header
            describes: the file is damaged from here on.
    """
    frames, damage = decode_before_damage(data, offset=offset, header=header, max_frames=max_frames)
    if damage is not None:
        raise damage
    return frames


def decode_before_damage(
    data: bytes, *, offset: int, header: Header | None, max_frames: int = 1 << 30
) -> tuple[Frames, IntegrityError | None]:
    """Decode as `decode` does; return what stands before the first damage, and the damage if there
    is any.
    """
    frames, rows, position = Frames(offset, header), list[bytes](), 0
    row_bytes = _row_bytes(header)
    damage = None
    for _ in range(max_frames):
        start = position + _PREFIX.size
        if start > len(data):
            break
        length, checksum, kind = _PREFIX.unpack_from(data, position)
        if length <= MAX_PAYLOAD_BYTES and start + length > len(data):
            break
        payload = data[start : start + length]
        if length > MAX_PAYLOAD_BYTES or _checksum(kind, payload) != checksum:
            damage = IntegrityError(f"spool frame at offset {offset + position} is damaged")
            break
        if kind == b"S":
            if length != row_bytes:
                what = "stands before a header" if frames.header is None else "is not as its header"
                damage = IntegrityError(f"spool sample row at offset {offset + position} {what}")
                break
            rows.append(payload)
        elif kind == b"E":
            frames.events.append(json.loads(payload))
        elif kind == b"T":
            frames.timelines.append(payload)
        elif kind == b"H":
            if rows:
                break
            raw = json.loads(payload)
            frames.header = Header(raw["stream"], tuple(raw["metrics"]))
            row_bytes = _row_bytes(frames.header)
        position = start + length
    frames.end_offset = offset + position
    frames.samples = b"".join(rows)
    return frames, damage


def next_whole(data: bytes) -> int | None:
    """Return where in `data`, which begins with damage, a frame stands whole; None if nowhere."""
    for kind in _KIND.finditer(data, _PREFIX.size):
        position = kind.end() - _PREFIX.size
        length, checksum, letter = _PREFIX.unpack_from(data, position)
        payload = data[kind.end() : kind.end() + length]
        whole = len(payload) == length <= MAX_PAYLOAD_BYTES
        if whole and _checksum(letter, payload) == checksum:
            return position
    return None


def _row_bytes(header: Header | None) -> int | None:
    return None if header is None else _NUMBER_BYTES * (2 + len(header.metrics))


def _checksum(kind: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, _ROW_CRC if kind == b"S" else zlib.crc32(kind))


def _frame(kind: bytes, payload: bytes) -> bytes:
    assert len(payload) <= MAX_PAYLOAD_BYTES, f"spool payload of {len(payload)} bytes"
    return _PREFIX.pack(len(payload), _checksum(kind, payload), kind) + payload
