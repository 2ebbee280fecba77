"""What a condition says of steps: a sign for each member and step. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from control.rules.frame import Bools, Floats, Frame, Ints

SILENT, GOOD, BETWEEN, BAD, SICK = range(5)
"""Nothing to say; good; good, and yet not so good that what fires is over; bad; not finite, which
is bad whatever else is exempt.
"""

Codes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of some steps.

    Attributes:
        codes: (members, steps).
        since: (members, steps); the step at which the bad stretch began that a bad sign tells of.
        counts: (members, steps); for how many steps a sign stands, itself included.
        bars: for each member the bound that its newest value was compared with; NaN for none.
    """

    codes: Codes
    since: Ints
    counts: Ints
    bars: Floats


def plain(frame: Frame, codes: Codes, bars: Floats | None = None) -> Signs:
    """Return signs that each stand for their own step."""
    return Signs(
        codes,
        np.broadcast_to(frame.steps, codes.shape),
        np.ones(codes.shape, dtype=np.int64),
        bars if bars is not None else np.full(len(frame.members), np.nan),
    )


def judged(known: Bools, bad: Bools, sick: Bools, clear: Bools | None = None) -> Codes:
    """Return codes of what is known; `clear`: where what fires would be over."""
    codes = np.where(known, np.where(bad, BAD, GOOD), SILENT).astype(np.int8)
    if clear is not None:
        codes[(codes == GOOD) & ~clear] = BETWEEN
    codes[sick] = SICK
    return codes


def all_of(found: Sequence[Signs]) -> Signs:
    """Return bad where all are, good where one is."""
    codes = np.stack([each.codes for each in found])
    lowest, is_bad = codes.min(axis=0), codes >= BAD
    some_good = ((codes == GOOD) | (codes == BETWEEN)).any(axis=0)
    between = ~(codes == GOOD).any(axis=0)
    joined = np.where(
        is_bad.all(axis=0), lowest, np.where(some_good, np.where(between, BETWEEN, GOOD), SILENT)
    )
    return _joined(found, joined.astype(np.int8))


def any_of(found: Sequence[Signs]) -> Signs:
    """Return bad where one is, else good where one is."""
    return _joined(found, np.stack([each.codes for each in found]).max(axis=0))


def _joined(found: Sequence[Signs], codes: Codes) -> Signs:
    is_bad = np.stack([each.codes for each in found]) >= BAD
    since = np.stack([each.since for each in found])
    counts = np.stack([each.counts for each in found])
    far = np.iinfo(np.int64).max
    earliest = np.where(is_bad, since, far).min(axis=0)
    own = np.stack([each.since for each in found]).max(axis=0)
    bars = next((each.bars for each in found if not np.isnan(each.bars).all()), found[0].bars)
    return Signs(
        codes,
        np.where(earliest == far, own, earliest),
        np.where(is_bad, counts, 1).max(axis=0),
        bars,
    )
