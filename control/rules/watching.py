"""Rules on live runs: what is new since the last turn is taken, and the rest is remembered.

What is remembered is nothing that would not come out the same from the samples: where the lineage
or a rule has changed, the rule begins anew on the window of the new lineage. So a rule rewinds with
the run, and an edit is active in the next turn.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from control.lineage import surviving
from control.rules.derived import Known, sources_of, with_derived
from control.rules.evaluate import Watch
from control.rules.frame import Column, Frame, column_of
from control.rules.judgement import RUN, Judgement
from control.rules.members import OF_MESSAGES, Member, Seat, members_of, needs_ranks
from control.rules.planned import known_of
from control.rules.trust import trust_of
from control.snapshot import RunSnapshot, Sample
from trainmaster.layout import roles
from trainmaster.metrics import BY_NAME, Reduce
from trainmaster.rule import Rule, ScopeName

MAX_RUNS = 256

Frames = dict[tuple[tuple[str, ...], int], Frame | None]
"""What rules on the same metrics look at in one turn."""
Lineage = tuple[tuple[int, int], ...]


@dataclass
class _Run:
    lineage: Lineage
    watches: dict[str, Watch] = field(default_factory=dict)


class Watches:
    """The watches of runs that had a turn of late."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def judge(self, snapshot: RunSnapshot) -> tuple[Judgement, ...]:
        """Return what the enabled rules say that have something to look at; those without stay as
        they are.
        """
        lineage = tuple(surviving(snapshot).items())
        run = self._runs.pop(snapshot.run.id, None)
        if run is None or run.lineage != lineage:
            run = _Run(lineage)
        self._runs[snapshot.run.id] = run
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        found: list[Judgement] = []
        known: dict[str, Watch] = {}
        frames: Frames = {}
        seats = _seats(snapshot)
        beside = _known(snapshot, seats)
        for rule in snapshot.rules:
            watch = _advanced(run.watches.get(rule.name), rule, snapshot, seats, beside, frames)
            if watch is not None:
                known[rule.name] = watch
                found += watch.judgements
        run.watches = known
        return tuple(found)


def judge_all(snapshot: RunSnapshot) -> tuple[Judgement, ...]:
    """Return what the rules say of a snapshot that nobody has looked at before."""
    return Watches().judge(snapshot)


def _seats(snapshot: RunSnapshot) -> tuple[Seat, ...]:
    attempt = snapshot.attempt
    if attempt is None:
        return ()
    homes = {rank.rank: rank.node for rank in snapshot.ranks}
    return tuple(
        Seat(role.rank, role.replica, role.stage, homes.get(role.rank, role.node))
        for role in roles(attempt.plan)
    )


def _advanced(
    watch: Watch | None,
    rule: Rule,
    snapshot: RunSnapshot,
    seats: tuple[Seat, ...],
    beside: Known,
    frames: Frames,
) -> Watch | None:
    """Return the watch of `rule` after what is new; None where there is nothing to look at."""
    if not rule.enabled:
        return None
    windows = snapshot.rank_windows if needs_ranks(rule) else snapshot.windows
    if any(metric not in windows for metric in sources_of((rule.metric,))):
        return None
    members = members_of(rule, seats)
    names = tuple(member.name for member in members)
    if watch is None or not _same(watch.rule, rule) or watch.members != names:
        watch = Watch(rule, names)
    if needs_ranks(rule):
        frame = _of_ranks(rule, members, seats, snapshot, beside, watch.last_step)
    else:
        key = (rule.metrics, watch.last_step)
        if key not in frames:
            frames[key] = _of_run(rule.metrics, snapshot, beside, watch.last_step)
        frame = frames[key]
    if frame is not None:
        watch.take(frame)
    return watch


def _same(one: Rule, other: Rule) -> bool:
    return one is other or one == other


def _known(snapshot: RunSnapshot, seats: Sequence[Seat]) -> Known:
    attempt = snapshot.attempt
    plan = attempt.plan if attempt is not None else None
    homes = {seat.node for seat in seats if seat.node}
    nodes = (snapshot.node(name) for name in homes)
    found = known_of(plan, seats, {node.id: node.profile for node in nodes if node is not None})
    trusted = (
        (each.trusted_at, each.step)
        for each in snapshot.checkpoints
        if each.state == "trusted" and each.trusted_at is not None and not each.abandoned
    )
    trust_after_steps = snapshot.run.spec.checkpoint.trust_after_steps
    return replace(found, trust=trust_of(attempt, trusted, trust_after_steps))


def _of_run(
    metrics: Sequence[str], snapshot: RunSnapshot, beside: Known, after: int
) -> Frame | None:
    """Return what run-level windows hold after a step, as far as all of the metrics are told."""
    windows = snapshot.windows
    told = {metric: windows[metric] for metric in sources_of(metrics) if windows.get(metric)}
    if not told:
        return None
    last = min(window[-1].step for window in told.values())
    new = {metric: _between(window, after, last) for metric, window in told.items()}
    steps = _steps(new.values())
    if not steps:
        return None
    columns = {metric: _column(found, steps) for metric, found in new.items()}
    frame = _frame((RUN,), new.values(), steps, columns)
    derived = with_derived(columns, metrics, beside, frame.steps, frame.at)
    return replace(frame, columns=derived)


def _of_ranks(
    rule: Rule,
    members: Sequence[Member],
    seats: Sequence[Seat],
    snapshot: RunSnapshot,
    beside: Known,
    after: int,
) -> Frame | None:
    told = {
        (metric, rank): window
        for metric in sources_of(rule.metrics)
        for rank, window in snapshot.rank_windows.get(metric, {}).items()
        if window
    }
    if not told or not members:
        return None
    last = min(window[-1].step for window in told.values())
    new = {key: _between(window, after, last) for key, window in told.items()}
    steps = _steps(new.values())
    if not steps:
        return None
    ranks: dict[str, Column] = {}
    columns: dict[str, Column] = {}
    for metric in sources_of(rule.metrics):
        found = [_column(new.get((metric, seat.rank), ()), steps) for seat in seats]
        column = Column(
            np.concatenate([each.values for each in found]),
            np.concatenate([each.measured for each in found]),
        )
        ranks[metric] = column
    names = tuple(member.name for member in members)
    frame = _frame(names, new.values(), steps, columns)
    ranks = with_derived(ranks, rule.metrics, beside, frame.steps, frame.at)
    return of_members(rule, frame, members, seats, ranks)


def of_members(
    rule: Rule,
    frame: Frame,
    members: Sequence[Member],
    seats: Sequence[Seat],
    ranks: Mapping[str, Column],
) -> Frame:
    """Return the frame with the values of `ranks` as those of members."""
    places = {seat.rank: place for place, seat in enumerate(seats)}
    groups = [[places[rank] for rank in member.ranks or places] for member in members]
    return replace(
        frame,
        columns={
            metric: grouped(column, groups, reduction(metric, rule.scope))
            for metric, column in ranks.items()
        },
        ranks=ranks,
        peers=tuple(member.stage for member in members),
        replicas=tuple(seat.replica for seat in seats),
        parts=tuple(member.parts for member in members),
    )


def reduction(metric: str, scope: ScopeName = RUN) -> Reduce:
    """Return how ranks become one value of `metric`: of a link that messages cross what its ends
    both waited, for the rest is waiting for a slow stage.
    """
    if scope == "link" and metric in OF_MESSAGES:
        return "min"
    known = BY_NAME.get(metric)
    return "mean" if known is None or known.reduce == "same" else known.reduce


def grouped(column: Column, groups: Sequence[Sequence[int]], kind: Reduce) -> Column:
    """Return the values of groups of ranks, given by their places: a NaN of one is the group's."""
    values, measured = [], []
    for places in groups:
        own, told = column.values[list(places)], column.measured[list(places)]
        count = told.sum(axis=0)
        if len(places) == 1:
            found = own[0]
        elif kind in {"max", "min"}:
            far = -np.inf if kind == "max" else np.inf
            reduce = np.maximum.reduce if kind == "max" else np.minimum.reduce
            found = reduce(np.where(told, own, far), axis=0)
        else:
            total = np.where(told, own, 0.0).sum(axis=0)
            found = total if kind == "sum" else total / np.maximum(count, 1)
        values.append(np.where(count > 0, found, 0.0))
        measured.append(count > 0)
    return Column(np.stack(values), np.stack(measured))


def _between(window: Sequence[Sample], after: int, last: int) -> Sequence[Sample]:
    start = bisect.bisect_right(window, after, key=_step)
    return window[start : bisect.bisect_right(window, last, lo=start, key=_step)]


def _step(sample: Sample) -> int:
    return sample.step


def _steps(found: Iterable[Sequence[Sample]]) -> list[int]:
    found = list(found)
    first = [sample.step for sample in found[0]]
    if all(len(each) == len(first) and [s.step for s in each] == first for each in found[1:]):
        return first
    return sorted({sample.step for each in found for sample in each})


def _column(found: Sequence[Sample], steps: Sequence[int]) -> Column:
    if len(found) == len(steps):
        return column_of([sample.value for sample in found])
    values = {sample.step: sample.value for sample in found}
    return column_of([values.get(step) for step in steps])


def _frame(
    members: tuple[str, ...],
    found: Iterable[Sequence[Sample]],
    steps: Sequence[int],
    columns: Mapping[str, Column],
) -> Frame:
    at: dict[int, float] = {}
    generation: dict[int, int] = {}
    for samples in found:
        for sample in samples:
            at[sample.step] = max(at.get(sample.step, 0.0), sample.at.timestamp())
            generation[sample.step] = sample.generation
    of_step = [generation[step] for step in steps]
    begins = [
        step == 1 or (place > 0 and of_step[place] != of_step[place - 1])
        for place, step in enumerate(steps)
    ]
    return Frame(
        members,
        np.array(steps, dtype=np.int64),
        np.array([at[step] for step in steps]),
        np.array(begins, dtype=bool),
        columns,
    )
