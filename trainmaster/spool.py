"""The spool's format: frames appended to a file by one writer, read by any number of readers. Pure
codec; files are opened elsewhere.

A frame is `<u32 payload length><u32 crc32 of kind and payload><u8 kind><payload>`, little-endian.
The first frame of a file is its header: JSON that names the stream and the metrics of its sample
rows. Each append is one write, so a crash can tear only the last frame, and a reader stops before
a torn frame. A cursor is a byte offset between two frames.

Kinds: H header (JSON), E event (JSON as `wire.Event`), S sample row: `<i64 step><f64 at><f64
    value>...`, values in the header's order, NaN where a metric was not measured is told apart
    from a measured NaN by its payload (`MISSING`).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainmaster.errors import IntegrityError

_PREFIX = struct.Struct("<IIc")
_ROW_HEAD = struct.Struct("<qd")
MAX_PAYLOAD_BYTES = 1 << 20

MISSING: float = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
"""The quiet NaN that stands for "not measured"."""
_MISSING_BITS = struct.pack("<d", MISSING)


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
    """What was decoded: events as parsed JSON, sample rows as (step, at, values), and where the
    next frame begins.
    """

    end_offset: int
    header: Header | None = None
    events: list[dict[str, object]] = field(default_factory=list)
    rows: list[tuple[int, float, tuple[float, ...]]] = field(default_factory=list)


def is_missing(value: float) -> bool:
    """Return whether `value` is the mark for "not measured" rather than a measured NaN."""
    return value != value and struct.pack("<d", value) == _MISSING_BITS


def encode_header(header: Header) -> bytes:
    """Return the first frame of a file."""
    return _frame(
        b"H", json.dumps({"stream": header.stream, "metrics": list(header.metrics)}).encode()
    )


def encode_event(event_json: bytes) -> bytes:
    """Return a frame for an event already written as JSON."""
    return _frame(b"E", event_json)


def encode_row(layout: struct.Struct, step: int, at: float, values: Sequence[float]) -> bytes:
    """Return a frame for one sample row; `layout` comes from `Header.row_struct`."""
    return _frame(b"S", layout.pack(step, at, *values))


def decode(data: bytes, *, offset: int, header: Header | None, max_frames: int = 1 << 30) -> Frames:
    """Decode the whole frames of `data`, which was read at `offset` of a file whose header is
    `header`.

    A torn last frame is left for the next read.

    Raises:
        IntegrityError: a whole frame whose checksum is wrong, or a sample row before the header:
            the file is damaged from here on.
    """
    frames = Frames(offset, header)
    position = 0
    for _ in range(max_frames):
        if position + _PREFIX.size > len(data):
            break
        length, checksum, kind = _PREFIX.unpack_from(data, position)
        start = position + _PREFIX.size
        if length <= MAX_PAYLOAD_BYTES and start + length > len(data):
            break
        payload = data[start : start + length]
        if length > MAX_PAYLOAD_BYTES or zlib.crc32(payload, zlib.crc32(kind)) != checksum:
            raise IntegrityError(f"spool frame at offset {offset + position} is damaged")
        _take(frames, kind, payload, offset + position)
        position = start + length
    frames.end_offset = offset + position
    return frames


def _take(frames: Frames, kind: bytes, payload: bytes, offset: int) -> None:
    if kind == b"E":
        frames.events.append(json.loads(payload))
    elif kind == b"S":
        if frames.header is None:
            raise IntegrityError(f"spool sample row at offset {offset} stands before a header")
        step, at = _ROW_HEAD.unpack_from(payload)
        count = (len(payload) - _ROW_HEAD.size) // 8
        frames.rows.append((step, at, struct.unpack_from(f"<{count}d", payload, _ROW_HEAD.size)))
    elif kind == b"H":
        raw = json.loads(payload)
        frames.header = Header(raw["stream"], tuple(raw["metrics"]))


def _frame(kind: bytes, payload: bytes) -> bytes:
    assert len(payload) <= MAX_PAYLOAD_BYTES, f"spool payload of {len(payload)} bytes"
    return _PREFIX.pack(len(payload), zlib.crc32(payload, zlib.crc32(kind)), kind) + payload
