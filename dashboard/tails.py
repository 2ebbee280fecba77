"""Series that grow: the points known so far are kept, and only those after them are asked for."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dashboard.charts.series import Series
from dashboard.data import MOST_POINTS, Json, Reader
from trainmaster.errors import UnavailableError

OVERLAP_STEPS = 8
"""Newest steps that are read again: not every rank had told of them yet."""

_ROOM = MOST_POINTS // 4
"""Points that may come in one by one before the server thins the whole again."""

_READERS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="series")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A series of a run: of one rank, or of the run as a whole."""

    metric: str
    rank: int | None = None
    all_generations: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """What is known of a series, up to `last_step` of the generation that grows."""

    series: Series
    generation: int
    last_step: int


Tails = MutableMapping[tuple[str, Wanted], Tail]


def read_all(reader: Reader, tails: Tails, run: Json, wanted: Sequence[Wanted]) -> list[Series]:
    """Return the series that are `wanted`, in their order, read side by side."""
    return list(_READERS.map(lambda each: read_on(reader, tails, run, each), wanted))


def read_on(reader: Reader, tails: Tails, run: Json, wanted: Wanted) -> Series:
    """Return a series, having asked only for what is new in it; `tails` keeps what is known.

    A new generation changes what survives, so the series is then read anew, as it is when more has
    come in than a chart can show. While the control plane is away, what is known is returned.
    """
    key = (str(run["id"]), wanted)
    known = tails.get(key)
    generation = int(run.get("generation") or 0)
    try:
        if known is not None and known.generation == generation:
            grown = _grown(reader, known, key)
            if grown is not None:
                tails[key] = grown
                return grown.series
        document = reader.series(
            key[0], wanted.metric, rank=wanted.rank, all_generations=wanted.all_generations
        )
    except UnavailableError:
        if known is None:
            raise
        return known.series
    series = Series.read(document)
    newest = series.newest_step(generation)
    if newest is None:
        tails.pop(key, None)
    else:
        tails[key] = Tail(series, generation, newest)
    return series


def _grown(reader: Reader, known: Tail, key: tuple[str, Wanted]) -> Tail | None:
    """Return `known` with what has come since, or None if it must be read anew."""
    run, wanted = key
    after_step = max(0, known.last_step - OVERLAP_STEPS)
    document = reader.series(
        run,
        wanted.metric,
        rank=wanted.rank,
        generation=known.generation,
        after_step=after_step,
    )
    old = known.series
    kept = old.where((old.generations != known.generation) | (old.steps <= after_step))
    series = kept.followed_by(Series.read(document))
    if document.get("downsampled") or len(series) > MOST_POINTS + _ROOM:
        return None
    newest = series.newest_step(known.generation)
    return Tail(series, known.generation, known.last_step if newest is None else newest)
