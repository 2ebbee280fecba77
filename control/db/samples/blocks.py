"""The form of sealed samples: one column of a block of steps, compressed by itself, so that reading
a metric touches no other. Pure codec.

A block's columns are `step` and `at`, which all its metrics share, and one per metric. A column is
`<u8 form><zlib of its 64-bit numbers>`, the numbers' bytes transposed: all first bytes, then all
second ones, since signs and exponents resemble each other and low bits nothing. In form 2, for what
ascends, each number stands as its bits' difference from the one before. Every bit comes back.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from control.db.samples import chunks
from control.db.samples.chunks import Floats, Ints, Rows
from control.db.sql.faults import UnreadableError

STEP, AT = "step", "at"
_PLAIN, _DIFFERENCES = 1, 2
_COMPRESSION = 1  # of zlib: 3 takes longer for 0.3 % less


def encode(column: Floats | Ints, *, ascends: bool = False) -> bytes:
    """Return the bytes of a column of 64-bit numbers."""
    bits = np.ascontiguousarray(column).view("<u8")
    if ascends:
        bits = np.diff(bits, prepend=np.uint64(0))
    planes = bits.view(np.uint8).reshape(-1, 8).T
    form = _DIFFERENCES if ascends else _PLAIN
    return bytes([form]) + zlib.compress(planes.tobytes(), _COMPRESSION)


def decode(data: bytes) -> NDArray[np.uint64]:
    """Return the bits of a column; view them as what they are.

    Raises:
        UnreadableError: the bytes are no column.
    """
    form = data[0] if data else 0
    if form not in {_PLAIN, _DIFFERENCES}:
        raise UnreadableError(f"samples are stored in form {form}, which is not known here")
    try:
        planes = np.frombuffer(zlib.decompress(memoryview(data)[1:]), dtype=np.uint8)
        bits = np.ascontiguousarray(planes.reshape(8, -1).T).view("<u8").reshape(-1)
    except chunks.DAMAGE as error:
        raise UnreadableError(f"stored samples are damaged: {error}") from error
    return np.cumsum(bits, dtype=np.uint64) if form == _DIFFERENCES else bits


def columns_of(rows: Rows) -> Iterator[tuple[str, bytes]]:
    """Yield each column of a block by its name; a metric that was never measured has none."""
    yield STEP, encode(rows.steps, ascends=True)
    yield AT, encode(rows.at, ascends=True)
    for name, column in rows.values.items():
        if not bool(chunks.missing(column).all()):
            yield name, encode(column)


def rows_of(columns: Mapping[str, bytes]) -> Rows:
    """Return the rows of a block from its columns.

    Raises:
        UnreadableError: a column is damaged, or lacking.
    """
    bits = {name: decode(data) for name, data in columns.items()}
    if not {STEP, AT} <= bits.keys() or len({len(column) for column in bits.values()}) != 1:
        raise UnreadableError("stored samples are damaged: the columns of a block do not agree")
    values = {name: column.view("<f8") for name, column in bits.items() if name not in {STEP, AT}}
    return Rows(bits[STEP].view("<i8"), bits[AT].view("<f8"), values)


def split(rows: Rows, block_rows: int) -> Iterator[Rows]:
    """Yield `rows` as blocks, as even as can be, of at least `block_rows` rows where there are so
    many, and of less than twice as many.
    """
    count = max(1, len(rows.steps) // block_rows)
    edges: list[int] = np.linspace(0, len(rows.steps), count + 1).astype(np.int64).tolist()
    for start, end in pairwise(edges):
        yield Rows(
            rows.steps[start:end],
            rows.at[start:end],
            {name: column[start:end] for name, column in rows.values.items()},
        )
