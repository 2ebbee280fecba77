"""History on which rules are tried: the steps of one source, with values of the run or by rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from control.rules.derived import NOTHING_KNOWN, Known, with_derived
from control.rules.frame import Bools, Column, Floats, Frame, Ints
from control.rules.judgement import RUN
from control.rules.members import Seat, members_of, needs_ranks
from control.rules.watching import grouped, of_members, reduction
from trainmaster.rule import Rule


@dataclass(frozen=True)
class History:
    """What a source tells.

    Attributes:
        name: a run's id or a file's name, to be told.
        steps: ascending, each once.
        at: when each step ended, in seconds; None where the source does not tell.
        begins: whether an attempt began with the step.
        of_run: metric -> its run-level values.
        of_ranks: metric -> its values by rank, in the order of `seats`.
        notes: what a reader should know of the source, a sentence each.
        beside: what is known of the source beside its steps.
    """

    name: str
    steps: Ints
    at: Floats | None
    begins: Bools
    of_run: Mapping[str, Column]
    of_ranks: Mapping[str, Column] = field(default_factory=dict)
    seats: tuple[Seat, ...] = ()
    notes: tuple[str, ...] = ()
    beside: Known = NOTHING_KNOWN

    def __len__(self) -> int:
        return len(self.steps)

    def why_not(self, rule: Rule) -> str | None:
        """Return why `rule` cannot be tried on it, as a sentence; None if it can."""
        if not rule.enabled:
            return "It is disabled."
        if needs_ranks(rule):
            if rule.metric not in self._derived(self.of_ranks, rule):
                return f"The source has no {rule.metric} by rank."
            if rule.scope in {"node", "link"} and not any(seat.node for seat in self.seats):
                return "The source does not tell on which nodes the ranks were."
        elif rule.metric not in self._derived(self.of_run, rule):
            return f"The source has no {rule.metric}."
        in_seconds = rule.for_.seconds is not None or any(
            part.condition == "age" for part in rule.parts
        )
        if in_seconds and self.at is None:
            return "It is in seconds, and the source tells no time."
        return None

    def _derived(self, columns: Mapping[str, Column], rule: Rule) -> Mapping[str, Column]:
        return with_derived(columns, rule.metrics, self.beside, self.steps, self._at)

    @property
    def _at(self) -> Floats:
        return self.at if self.at is not None else np.arange(len(self.steps), dtype=np.float64)

    def frame(self, rule: Rule) -> Frame:
        """Return all of it as `rule` looks at it."""
        at = self._at
        if not needs_ranks(rule):
            known = self._derived(self.of_run, rule)
            columns = {name: known[name] for name in rule.metrics if name in known}
            return Frame((RUN,), self.steps, at, self.begins, columns)
        members = members_of(rule, self.seats)
        told = self._derived(self.of_ranks, rule)
        names = tuple(each.name for each in members)
        frame = Frame(names, self.steps, at, self.begins, {})
        ranks = {name: told[name] for name in rule.metrics if name in told}
        return of_members(rule, frame, members, self.seats, ranks)


def history_of(
    name: str,
    steps: Sequence[int],
    of_run: Mapping[str, Column],
    *,
    at: Sequence[float] | None = None,
    begins: Iterable[bool] | None = None,
    of_ranks: Mapping[str, Column] | None = None,
    seats: Sequence[Seat] = (),
    notes: Sequence[str] = (),
    beside: Known = NOTHING_KNOWN,
) -> History:
    """Return a history, with what follows from what the source tells: run-level values from those
    of ranks, and `applied` from what the guard on the ranks does: it applies no update whose loss
    or gradient norm is not finite.
    """
    of_ranks = of_ranks or {}
    known = dict(of_run)
    everyone = [list(range(len(seats)))]
    for metric, column in of_ranks.items():
        if metric not in known:
            known[metric] = grouped(column, everyone, reduction(metric))
    judged = [known[metric] for metric in ("loss", "grad_norm") if metric in known]
    if judged and "applied" not in known:
        measured = np.logical_or.reduce([each.measured for each in judged])
        sick = np.logical_or.reduce([each.sick for each in judged])
        known["applied"] = Column(np.where(sick, 0.0, 1.0), measured)
    numbers = np.asarray(steps, dtype=np.int64)
    marks = np.zeros(len(numbers), dtype=bool)
    if begins is not None:
        marks = np.asarray(list(begins), dtype=bool)
    elif len(numbers) and numbers[0] <= 1:
        marks[0] = True
    return History(
        name,
        numbers,
        None if at is None else np.asarray(at, dtype=np.float64),
        marks,
        known,
        of_ranks,
        tuple(seats),
        tuple(notes),
        beside,
    )
