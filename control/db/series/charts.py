"""Series for charts of long runs: what cannot change any more is condensed once and kept, so that a
chart of a million steps, or a zoom into it, reads what is stored only at the ends of its window.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from control.db.samples import samples
from control.db.samples.segments import Segment
from control.db.samples.series import Series, concatenated, part_of
from control.db.samples.statistics import Figures, figures, lies_on
from control.db.series.condensed import POINTS, STRIDE_STEPS, Cut, Stride, condensed, cut, points_of
from control.snapshot import Attempt

MOST_POINTS = 3_000_000
"""That are kept of all runs together: about a hundred megabytes."""

_TURNS = 16
"""Who reads a run waits for those who read it already, and seldom for those who read another."""
_OF_EACH_RANK = "step_time_s"
"""A metric that each rank tells for itself, so that the rows of all are counted."""

Wanted = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Shown:
    """A series for a chart.

    Attributes:
        series: its points, or of long stretches a choice that holds all their extremes.
        total: how many points there are.
        figures: of stretches that follow each other, on the surviving lineage.
    """

    series: Series
    total: int
    figures: Sequence[Figures]


@dataclass
class _Generation:
    """What is kept of one generation: up to `settled_step`, while `num_rows` are stored of it."""

    settled_step: int = 0
    num_rows: int = 0
    strides: dict[Wanted, list[Stride]] = field(default_factory=dict)

    @property
    def num_points(self) -> int:
        return sum(len(each.points) for kept in self.strides.values() for each in kept)


_Cuts = dict[int, tuple[Cut, list[list[Stride]]]]
"""Generation -> how its segment is cut, and the strides in it of each series that is wanted."""


class Charts:
    """Reads series for charts, and keeps strides of the runs that were looked at of late."""

    def __init__(self) -> None:
        self._turns = tuple(threading.Lock() for _ in range(_TURNS))
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], _Generation] = OrderedDict()

    def read(
        self,
        connection: Connection,
        run: str,
        attempts: Sequence[Attempt],
        wanted: Sequence[Wanted],
        segments: Sequence[Segment],
        *,
        lineage: Sequence[Segment],
        live: int | None,
        num_points: int,
    ) -> list[Shown]:
        """Return a series for each (metric, rank) that is wanted; see `samples.read_each`.

        Args:
            num_points: how many points of each will be shown. A window of which less is kept is
                read as it is stored.
        """
        cuts: _Cuts = {}
        least = -(-num_points // POINTS)
        last_steps = {each.generation: each.last_step or 0 for each in attempts}
        with self._turns[hash(run) % _TURNS]:
            for segment in segments:
                settled = last_steps[segment.generation]
                if segment.generation == live:
                    settled = samples.complete_to(connection, run, live, 0) or 0
                found = cut(segment, settled, least)
                if found is not None:
                    strides = self._strides(connection, run, wanted, found)
                    if strides is not None:
                        cuts[segment.generation] = found, strides
        self._forget()
        return _shown(connection, run, wanted, segments, cuts, lineage, live)

    def _strides(
        self, connection: Connection, run: str, wanted: Sequence[Wanted], found: Cut
    ) -> list[list[Stride]] | None:
        """Return the strides of each series; None where they are not to be kept."""
        generation, (first, end) = found.before.generation, found.strides
        key = (run, generation)
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None or kept.num_rows != _num_rows(
            connection, run, generation, kept.settled_step
        ):
            kept = _Generation()
        if end * STRIDE_STEPS > kept.settled_step:
            kept.settled_step = end * STRIDE_STEPS
            kept.num_rows = _num_rows(connection, run, generation, kept.settled_step)
        if kept.num_rows < end * POINTS:
            return None  # few points far apart: to cut them up costs more than to read them
        lacking: dict[int, list[Wanted]] = {}
        for each in dict.fromkeys(wanted):
            known = kept.strides.setdefault(each, [])
            if len(known) < end:
                lacking.setdefault(len(known), []).append(each)
        for begin, some in lacking.items():
            segment = Segment(generation, begin * STRIDE_STEPS, end * STRIDE_STEPS)
            read = samples.read_each(connection, run, some, [segment])
            if any(series.rolled_up for series in read):
                return None
            for each, series in zip(some, read, strict=True):
                kept.strides[each] += condensed(series, begin, end)
        with self._lock:
            self._kept[key] = kept
        return [kept.strides[each][first:end] for each in wanted]

    def _forget(self) -> None:
        with self._lock:
            total = sum(each.num_points for each in self._kept.values())
            while len(self._kept) > 1 and total > MOST_POINTS:
                _, gone = self._kept.popitem(last=False)
                total -= gone.num_points


def _num_rows(connection: Connection, run: str, generation: int, last_step: int) -> int:
    segment = Segment(generation, 0, last_step)
    return samples.num_rows(connection, run, _OF_EACH_RANK, [segment])


def _shown(
    connection: Connection,
    run: str,
    wanted: Sequence[Wanted],
    segments: Sequence[Segment],
    cuts: _Cuts,
    lineage: Sequence[Segment],
    live: int | None,
) -> list[Shown]:
    """Return what the strides hold, and around them what is stored."""

    def stored(*stretches: Segment) -> list[Series]:
        some = [each for each in stretches if each.after_step < each.last_step]
        if not some:
            return [concatenated([]) for _ in wanted]
        return samples.read_each(connection, run, wanted, some, live=live)

    whole = stored(*(each for each in segments if each.generation not in cuts))
    parts: list[list[Series]] = [[] for _ in wanted]
    told: list[list[Figures]] = [[] for _ in wanted]
    totals = [0 for _ in wanted]

    def add(place: int, series: Series) -> None:
        parts[place].append(series)
        totals[place] += len(series)
        told[place].append(figures(part_of(series, lies_on(series, lineage))))

    for segment in segments:
        found = cuts.get(segment.generation)
        if found is None:
            for place, series in enumerate(whole):
                add(place, part_of(series, series.generations == segment.generation))
            continue
        at, strides = found
        before, after = stored(at.before), stored(at.after)
        split = _split_by(lineage, at)
        exact = {number: stored(_stretch(at, number)) for number in split}
        for place, of_one in enumerate(strides):
            add(place, before[place])
            parts[place].append(points_of(of_one))
            totals[place] += sum(each.total for each in of_one)
            for number, each in enumerate(of_one, at.strides[0]):
                if number in exact:
                    series = exact[number][place]
                    told[place].append(figures(part_of(series, lies_on(series, lineage))))
                elif _lies_on(lineage, _stretch(at, number)):
                    told[place].append(each.figures)
            add(place, after[place])
    return [
        Shown(concatenated(series), total, of_one)
        for series, total, of_one in zip(parts, totals, told, strict=True)
    ]


def _stretch(at: Cut, number: int) -> Segment:
    return Segment(at.before.generation, number * STRIDE_STEPS, (number + 1) * STRIDE_STEPS)


def _split_by(lineage: Sequence[Segment], at: Cut) -> list[int]:
    """Return the strides of which only a part lies on the lineage."""
    edges = {
        step
        for each in lineage
        if each.generation == at.before.generation
        for step in (each.after_step, each.last_step)
    }
    numbers = {step // STRIDE_STEPS for step in edges if step % STRIDE_STEPS}
    return sorted(number for number in numbers if at.strides[0] <= number < at.strides[1])


def _lies_on(lineage: Sequence[Segment], stretch: Segment) -> bool:
    return any(
        each.generation == stretch.generation
        and each.after_step <= stretch.after_step
        and each.last_step >= stretch.last_step
        for each in lineage
    )
