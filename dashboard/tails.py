"""Series that grow: the points known so far are kept, and only those after them are asked for, all
series of a page in one request.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.charts.series import Series
from dashboard.data import MOST_POINTS, Json, Reader, several_body
from trainmaster.errors import UnavailableError

OVERLAP_STEPS = 8
"""Newest steps that are read again: not every rank had told of them yet."""

_ROOM = 0.25
"""Points that may come in one by one before the server thins the whole again, of those shown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A series of a run: of one rank, or of the run as a whole.

    Attributes:
        points: how many are shown at most.
        tokens: whether each point tells what had been taken in by then.
    """

    metric: str
    rank: int | None = None
    all_generations: bool = False
    points: int = MOST_POINTS
    tokens: bool = False

    @property
    def request(self) -> tuple[bool, int, bool]:
        """What series must share to be read in one request."""
        return self.all_generations, self.points, self.tokens


@dataclass(frozen=True, slots=True)
class Tail:
    """What is known of a series, up to `last_step` of the generation that grows."""

    series: Series
    generation: int
    last_step: int


Tails = MutableMapping[tuple[str, Wanted], Tail]


def read_all(reader: Reader, tails: Tails, run: Json, wanted: Sequence[Wanted]) -> list[Series]:
    """Return the series that are `wanted`, in their order, having asked only for what is new in
    them; `tails` keeps what is known.

    A new generation changes what survives, so a series is then read anew, as it is when more has
    come in than a chart can show. While the control plane is away, what is known is returned.
    """
    run_id, generation = str(run["id"]), int(run.get("generation") or 0)
    known = {each: tail for each in wanted if (tail := tails.get((run_id, each))) is not None}
    try:
        found = _grown(reader, tails, run_id, generation, known)
        missing = [each for each in wanted if each not in found]
        for part in by_request(missing):
            found |= _anew(reader, tails, run_id, generation, part)
    except UnavailableError:
        if len(known) < len(set(wanted)):
            raise
        found = {each: tail.series for each, tail in known.items()}
    return [found[each] for each in wanted]


def ahead(tails: Tails, run: str, wanted: Sequence[Wanted]) -> list[Json]:
    """Return what `read_all` is about to ask for (`dashboard.data.several_body`), as far as can be
    known before the run is read again.
    """
    known = {each: tail for each in wanted if (tail := tails.get((run, each))) is not None}
    generation = max((tail.generation for tail in known.values()), default=0)
    growing = _growing(known, generation)
    missing = [each for each in wanted if each not in growing]
    grown = [_growth(growing, generation)] if growing else []
    return grown + [_whole(part) for part in by_request(missing)]


def by_request(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
    """Return what is wanted, parted into what can be read in one request each."""
    parts: dict[Any, list[Wanted]] = {}
    for each in wanted:
        parts.setdefault(each.request, []).append(each)
    return list(parts.values())


def _growing(known: Mapping[Wanted, Tail], generation: int) -> dict[Wanted, Tail]:
    return {each: tail for each, tail in known.items() if tail.generation == generation}


def _after_step(growing: Mapping[Wanted, Tail]) -> int:
    return max(0, min(tail.last_step for tail in growing.values()) - OVERLAP_STEPS)


def _growth(growing: Mapping[Wanted, Tail], generation: int) -> Json:
    return several_body(
        [(each.metric, each.rank) for each in growing],
        generation=generation,
        after_step=_after_step(growing),
        tokens=any(each.tokens for each in growing),
    )


def _whole(wanted: Sequence[Wanted]) -> Json:
    everything, points, tokens = wanted[0].request
    asked = [(each.metric, each.rank) for each in wanted]
    return several_body(asked, all_generations=everything, points=points, tokens=tokens)


def _anew(
    reader: Reader,
    tails: Tails,
    run: str,
    generation: int,
    wanted: Sequence[Wanted],
) -> dict[Wanted, Series]:
    """Read series of one request from their start."""
    documents = reader.several(run, _whole(wanted))
    found = {}
    for each, document in zip(wanted, documents, strict=True):
        series = Series.read(document)
        newest = series.newest_step(generation)
        if newest is None:
            tails.pop((run, each), None)
        else:
            tails[run, each] = Tail(series, generation, newest)
        found[each] = series
    return found


def _grown(
    reader: Reader,
    tails: Tails,
    run: str,
    generation: int,
    known: dict[Wanted, Tail],
) -> dict[Wanted, Series]:
    """Read on those of the series that need not be read anew."""
    growing = _growing(known, generation)
    if not growing:
        return {}
    after_step = _after_step(growing)
    documents = reader.several(run, _growth(growing, generation))
    found = {}
    for (each, tail), document in zip(growing.items(), documents, strict=True):
        old = tail.series
        kept = old.where((old.generations != generation) | (old.steps <= after_step))
        series = kept.followed_by(Series.read(document))
        if document.get("downsampled") or len(series) > each.points * (1 + _ROOM):
            continue
        newest = series.newest_step(generation)
        tails[run, each] = Tail(series, generation, newest or tail.last_step)
        found[each] = series
    return found
