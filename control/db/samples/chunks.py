"""The form of a chunk of samples: some steps of one rank as columns of 64-bit numbers. Pure codec.

A chunk is `<u32 length of the index><index as JSON><columns>`. The index lists [name, stored bytes,
is compressed] per column, the columns `step` (int64) and `at` (seconds since the epoch) first.
Values are float64, so NaN and infinities need no convention; the NaN whose payload is
`trainmaster.spool.MISSING` stands for "not measured" and is told from a measured NaN by its bits.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from control.db.sql.faults import UnreadableError
from trainmaster.errors import Problem, SpecError
from trainmaster.facts import PackedColumns
from trainmaster.spool import MISSING

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DAMAGE = (zlib.error, struct.error, ValueError, TypeError, KeyError, IndexError)
"""What reading bytes that are not what they should be ends in."""

_LENGTH = struct.Struct("<I")
_MISSING_BITS = int(np.array(MISSING).view(np.uint64))
# What `trainmaster.wire` takes for a Step and a Moment.
_LAST_STEP = 2**53
_BEYOND_AT = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_COMPRESSION = 3  # of zlib: 6 takes twice as long for 3 % less
_WORTH_BYTES = 256  # Below, compressing costs more time than all else, for little.


@dataclass(frozen=True, slots=True)
class Rows:
    """Steps in ascending order, when each ended, and the values measured at them; all of one
    length.
    """

    steps: Ints
    at: Floats
    values: Mapping[str, Floats]


def missing(values: Floats) -> Bools:
    """Return where `values` holds the mark for "not measured"."""
    return np.asarray(values.view(np.uint64) == _MISSING_BITS)


def absent(count: int) -> Floats:
    """Return `count` values that were not measured."""
    return np.full(count, MISSING)


def rows_of(
    steps: Sequence[int], at: Sequence[float], values: Mapping[str, Sequence[float | None]]
) -> Rows:
    """Return rows from what a sync carries; None becomes the mark, and every measured NaN the plain
    one.
    """
    return Rows(
        np.array(steps, dtype=np.int64),
        np.array(at, dtype=np.float64),
        {name: _column(told) for name, told in values.items()},
    )


def _column(told: Sequence[float | None]) -> Floats:
    column = np.array(told, dtype=np.float64)  # None becomes NaN here.
    nans = np.flatnonzero(np.isnan(column))
    if len(nans):
        column[nans] = [MISSING if told[each] is None else np.nan for each in nans.tolist()]
    return column


def rows_of_packed(packed: PackedColumns) -> Rows:
    """Return rows from the packed form of a sync: the mark stays, every measured NaN becomes the
    plain one, all else keeps its bits.

    Raises:
        SpecError: a step is not one, or an instant cannot be written down.
    """
    steps = np.frombuffer(packed.steps, dtype="<i8")
    at = np.frombuffer(packed.at, dtype="<f8")
    problems = [
        *_outside("packed.steps", steps, (steps < 1) | (steps > _LAST_STEP), "from 1 to 2**53"),
        *_outside("packed.at", at, ~((at >= 0) & (at < _BEYOND_AT)), "seconds since 1970"),
    ]
    if problems:
        raise SpecError(problems)
    values = {}
    for name, raw in packed.values.items():
        column = np.frombuffer(raw, dtype="<f8")
        nans = np.isnan(column)
        if nans.any():
            column = np.where(nans & ~missing(column), np.nan, column)
        values[name] = column
    return Rows(steps, at, values)


def _outside(path: str, column: Floats | Ints, wrong: Bools, wanted: str) -> list[Problem]:
    positions = np.flatnonzero(wrong)
    if len(positions) == 0:
        return []
    first = int(positions[0])
    others = f", and {len(positions) - 1} more are not" if len(positions) > 1 else ""
    return [Problem(f"{path}[{first}]", f"must be {wanted}, not {column[first]}{others}")]


def encode(rows: Rows) -> bytes:
    """Return the bytes of a chunk."""
    parts: list[bytes] = []
    packed: list[bool] = []
    for column in (rows.steps, rows.at, *rows.values.values()):
        part = column.astype("<i8" if column is rows.steps else "<f8", copy=False).tobytes()
        small = zlib.compress(part, _COMPRESSION) if len(part) >= _WORTH_BYTES else part
        packed.append(len(small) < len(part))
        parts.append(small if packed[-1] else part)
    head = _head(("step", "at", *rows.values), tuple(map(len, parts)), tuple(packed))
    return b"".join((head, *parts))


@lru_cache(maxsize=1024)
def _head(names: tuple[str, ...], sizes: tuple[int, ...], packed: tuple[bool, ...]) -> bytes:
    # Chunks of few rows, of which there are most, are alike here.
    index = [
        [name, size, int(is_packed)]
        for name, size, is_packed in zip(names, sizes, packed, strict=True)
    ]
    head = json.dumps(index, separators=(",", ":")).encode()
    return _LENGTH.pack(len(head)) + head


def decode(data: bytes, wanted: Sequence[str]) -> Rows:
    """Return the rows of a chunk with the `wanted` columns; one that it does not hold was not
    measured.

    Raises:
        UnreadableError: it is no chunk.
    """
    try:
        layout = _layout_of(data)
        steps = np.frombuffer(_raw(data, layout["step"]), dtype="<i8")
        at = np.frombuffer(_raw(data, layout["at"]), dtype="<f8")
        values = {
            name: np.frombuffer(_raw(data, layout[name]), dtype="<f8")
            if name in layout
            else absent(len(steps))
            for name in wanted
        }
    except DAMAGE as error:
        raise UnreadableError(f"stored samples are damaged: {error}") from error
    return Rows(steps, at, values)


def decode_all(parts: Sequence[bytes]) -> Rows:
    """Return the rows of chunks with all their columns, ascending; each step once, as the first
    chunk that holds it says.

    Raises:
        UnreadableError: one of them is no chunk.
    """
    try:
        layouts = [_layout_of(data) for data in parts]
        names = layouts[0].keys()
        if any(layout.keys() != names for layout in layouts):
            wanted = [[name for name in layout if name not in {"step", "at"}] for layout in layouts]
            return joined([decode(*each) for each in zip(parts, wanted, strict=True)])
        # Of small chunks there are many: their bytes are put together before numpy sees them.
        raw = {
            name: b"".join(
                [_raw(data, layout[name]) for data, layout in zip(parts, layouts, strict=True)]
            )
            for name in names
        }
        steps = np.frombuffer(raw.pop("step"), dtype="<i8")
        at = np.frombuffer(raw.pop("at"), dtype="<f8")
        values = {name: np.frombuffer(column, dtype="<f8") for name, column in raw.items()}
    except DAMAGE as error:
        raise UnreadableError(f"stored samples are damaged: {error}") from error
    return joined([Rows(steps, at, values)])


_Place = tuple[int, int, bool]
"""Where a column begins and ends, and whether it is compressed."""


def _layout_of(data: bytes) -> Mapping[str, _Place]:
    (length,) = _LENGTH.unpack_from(data)
    return _layout(data[: _LENGTH.size + length])


@lru_cache(maxsize=1024)
def _layout(head: bytes) -> Mapping[str, _Place]:
    offset = len(head)
    places = {}
    for name, size, is_packed in json.loads(head[_LENGTH.size :]):
        places[name] = (offset, offset + size, bool(is_packed))
        offset += size
    return places


def _raw(data: bytes, place: _Place) -> bytes:
    start, end, is_packed = place
    return zlib.decompress(data[start:end]) if is_packed else data[start:end]


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all `parts` in order; each step once, the first that was stored."""
    if len(parts) == 1 and bool(np.all(parts[0].steps[1:] > parts[0].steps[:-1])):
        return parts[0]
    wanted = dict.fromkeys(name for part in parts for name in part.values)
    steps = np.concatenate([part.steps for part in parts])
    at = np.concatenate([part.at for part in parts])
    values = {
        name: np.concatenate(
            [
                part.values[name] if name in part.values else absent(len(part.steps))
                for part in parts
            ]
        )
        for name in wanted
    }
    if len(steps) > 1 and not bool(np.all(steps[1:] > steps[:-1])):
        steps, first = np.unique(steps, return_index=True)
        at, values = at[first], {name: column[first] for name, column in values.items()}
    return Rows(steps, at, values)


def between(rows: Rows, after_step: int, last_step: int) -> Rows:
    """Return the rows whose step lies after `after_step` and not after `last_step`."""
    start, end = np.searchsorted(rows.steps, [after_step, last_step], side="right")
    if start == 0 and end == len(rows.steps):
        return rows
    return Rows(
        rows.steps[start:end],
        rows.at[start:end],
        {name: column[start:end] for name, column in rows.values.items()},
    )
