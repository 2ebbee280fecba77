"""A series as an answer carries it: its points, and the cursor from which the next read goes on.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from control.db.samples import chunks
from control.db.samples.chunks import Floats
from control.db.samples.segments import Segment
from control.db.samples.series import Series
from control.db.sql.values import number_word
from trainmaster.errors import UserError


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to where a reader has seen a series.

    Attributes:
        key: digests which series it is, and the segments it was read along: another lineage is
            another key.
        step: the newest step that was seen in the last segment.
        num_rows: how many rows were stored up to there. More of them, or fewer, mean that what was
            seen is no longer what is stored.
    """

    key: str
    step: int
    num_rows: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the cursor that an answer named.

        Raises:
            UserError: it is none.
        """
        key, *numbers = text.split(".")
        if len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
            raise UserError(
                f"{text!r} is no cursor of a series: give `cursor` of an answer, or nothing to "
                "begin",
                code="bad_cursor",
            )
        return cls(key, *(min(int(each), 2**62) for each in numbers))

    def __str__(self) -> str:
        return f"{self.key}.{self.step}.{self.num_rows}"


def key_of(asked: Sequence[object], segments: Sequence[Segment]) -> str:
    """Return the key of a series along `segments`."""
    return hashlib.sha256(repr((asked, segments)).encode()).hexdigest()[:16]


def seen(segments: Sequence[Segment], step: int) -> list[Segment]:
    """Return the part of `segments` that ends with `step` of the last one."""
    last = segments[-1]
    return [*segments[:-1], Segment(last.generation, last.after_step, step)]


def unseen(segments: Sequence[Segment], step: int) -> list[Segment]:
    """Return the part of `segments` after `step` of the last one."""
    last = segments[-1]
    return [Segment(last.generation, max(last.after_step, step), last.last_step)]


def points(found: Series) -> list[tuple[int, int, Any, str]]:
    """Return [generation, step, value, instant] of each point; None is what was not measured, and
    what is not finite a word.
    """
    return list(
        zip(
            found.generations.tolist(),
            found.steps.tolist(),
            _values(found.values),
            _instants(found.at),
            strict=True,
        )
    )


def columns(found: Series) -> dict[str, list[Any]]:
    """Return the same as columns; `at` in seconds since the epoch."""
    return {
        "generation": found.generations.tolist(),
        "step": found.steps.tolist(),
        "value": _values(found.values),
        "at": found.at.tolist(),
    }


def _values(column: Floats) -> list[float | str | None]:
    values: list[float | str | None] = column.tolist()
    for each in np.flatnonzero(~np.isfinite(column)).tolist():
        values[each] = number_word(float(column[each]))
    for each in np.flatnonzero(chunks.missing(column)).tolist():
        values[each] = None
    return values


def _instants(at: Floats) -> list[str]:
    micros = np.rint(at * 1e6).astype("datetime64[us]")
    instants: list[str] = np.datetime_as_string(micros, timezone="UTC").tolist()
    return instants
