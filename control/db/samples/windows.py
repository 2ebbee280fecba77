"""The windows of samples that turns look at: the newest steps of each watched metric.

A turn every second over the same 512 steps would read all of them each time. What every rank has
told does not change any more, so it is kept from turn to turn, and only what came since is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Connection

from control.db.samples import chunks, samples
from control.db.samples.samples import Series
from control.db.samples.segments import Segment, newest_step, surviving
from control.rules.derived import sources_of
from control.rules.members import needs_ranks
from control.snapshot import WINDOW_STEPS, Attempt, Rank, Sample
from trainmaster.metrics import BY_NAME, DERIVED
from trainmaster.rule import Rule

WATCHED = ("loss", "grad_norm", "applied", "step_time_s")
"""Read for every run, rules or none: probation, trust and learned limits look at them."""

MAX_KEPT = 256
"""Runs whose windows are kept: about half a megabyte each."""

Window = tuple[Sample, ...]


RankWindows = dict[str, dict[int, Window]]


@dataclass(frozen=True, slots=True)
class _OfRanks:
    """What is kept of the ranks of one generation."""

    generation: int
    metrics: tuple[str, ...]
    last_step: int
    windows: RankWindows


@dataclass(frozen=True, slots=True)
class _Kept:
    """The windows of a run up to and with `final_step`, and what they are of."""

    segments: tuple[Segment, ...]
    metrics: tuple[str, ...]
    final_step: int
    windows: Mapping[str, Window]


class Windows:
    """Reads windows, and keeps those of the runs that had a turn of late."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._of_ranks: OrderedDict[str, _OfRanks] = OrderedDict()

    def of(
        self,
        connection: Connection,
        run: str,
        attempts: Sequence[Attempt],
        ranks: Sequence[Rank],
        rules: Iterable[Rule],
    ) -> dict[str, Window]:
        """Return metric -> samples on the surviving lineage, ascending by step, at most the newest
        `WINDOW_STEPS` steps.
        """
        known = BY_NAME.keys() | DERIVED.keys()
        of_rules = (
            metric
            for rule in rules
            if not needs_ranks(rule)
            for metric in sources_of(rule.metrics)
            if metric in known
        )
        wanted = dict.fromkeys((*WATCHED, *of_rules))
        metrics = tuple(wanted)
        segments = surviving(attempts)
        last_step = newest_step(attempts, segments)
        if last_step is None:
            return dict.fromkeys(metrics, ())
        kept = self._kept.pop(run, None)
        if kept is None or (kept.segments, kept.metrics) != (segments, metrics):
            kept = _Kept(segments, metrics, 0, dict.fromkeys(metrics, ()))
        after = max(kept.final_step, last_step - WINDOW_STEPS)
        newest = attempts[-1]
        found = samples.read_many(
            connection,
            run,
            metrics,
            _beyond(segments, after),
            live=newest.generation if newest.ended_at is None else None,
            # A rank that cannot be heard for longer must not blind the rules.
            waits_after=max(0, last_step - WINDOW_STEPS),
        )
        windows = {
            metric: _after(kept.windows[metric], last_step - WINDOW_STEPS)
            + _as_samples(found[metric])
            for metric in metrics
        }
        self._keep(run, _final(kept, windows, ranks))
        return windows

    def of_ranks(
        self,
        connection: Connection,
        run: str,
        attempts: Sequence[Attempt],
        ranks: Sequence[Rank],
        rules: Iterable[Rule],
    ) -> RankWindows:
        """Return metric -> rank -> samples of the newest attempt, for the rules that look at ranks:
        ascending by step, at most the newest `WINDOW_STEPS` steps, up to the newest step that each
        rank has told. One that has told nothing for so long is not waited for.
        """
        metrics = tuple(
            dict.fromkeys(
                metric
                for rule in rules
                if needs_ranks(rule)
                for metric in sources_of(rule.metrics)
                if metric in BY_NAME
            )
        )
        newest = attempts[-1] if attempts else None
        if not metrics or newest is None or newest.last_step is None:
            return {metric: {} for metric in metrics}
        oldest = newest.last_step - WINDOW_STEPS
        told = [step for rank in ranks if (step := rank.last_step or 0) > oldest]
        last_step = min(told, default=0)
        kept = self._of_ranks.pop(run, None)
        if kept is None or (kept.generation, kept.metrics) != (newest.generation, metrics):
            kept = _OfRanks(newest.generation, metrics, 0, {metric: {} for metric in metrics})
        windows = kept.windows
        after = max(kept.last_step, oldest)
        if last_step > after:
            segment = Segment(newest.generation, after, last_step)
            found = samples.read_ranks(connection, run, metrics, segment)
            windows = {
                metric: {
                    rank: _after(windows[metric].get(rank, ()), oldest) + _as_samples(series)
                    for rank, series in found[metric].items()
                }
                for metric in metrics
            }
            kept = _OfRanks(newest.generation, metrics, last_step, windows)
        self._of_ranks[run] = kept
        while len(self._of_ranks) > MAX_KEPT:
            self._of_ranks.popitem(last=False)
        return windows

    def _keep(self, run: str, kept: _Kept) -> None:
        self._kept[run] = kept
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)


def _beyond(segments: Iterable[Segment], after: int) -> list[Segment]:
    return [
        Segment(each.generation, max(each.after_step, after), each.last_step)
        for each in segments
        if each.last_step > after
    ]


def _final(kept: _Kept, windows: Mapping[str, Window], ranks: Sequence[Rank]) -> _Kept:
    """Return what of `windows` cannot change any more: ranks tell their steps in order, so up to
    the newest step that each has told nothing is missing.
    """
    final_step = max(kept.final_step, min((rank.last_step or 0 for rank in ranks), default=0))
    return _Kept(
        kept.segments,
        kept.metrics,
        final_step,
        {metric: _until(window, final_step) for metric, window in windows.items()},
    )


def _after(window: Window, step: int) -> Window:
    first = next((at for at, sample in enumerate(window) if sample.step > step), len(window))
    return window[first:]


def _until(window: Window, step: int) -> Window:
    last = len(window)
    while last and window[last - 1].step > step:
        last -= 1
    return window[:last]


def _as_samples(series: Series) -> Window:
    absent = chunks.missing(series.values)
    return tuple(
        Sample(generation, step, datetime.fromtimestamp(at, UTC), None if unknown else value)
        for generation, step, at, value, unknown in zip(
            series.generations.tolist(),
            series.steps.tolist(),
            series.at.tolist(),
            series.values.tolist(),
            np.asarray(absent).tolist(),
            strict=True,
        )
    )
