"""The state of a rule, step by step. Pure; live runs and the back-test use this code.

What a rule says after some steps is a fold over them on the surviving lineage: new steps are taken
by themselves, and where the lineage changes the fold begins anew.
"""

from __future__ import annotations

import math

import numpy as np

from control.rules import detectors, signs
from control.rules.flapping import flaps
from control.rules.fold import MAX_FIRINGS, Fold
from control.rules.frame import Bools, Frame
from control.rules.judgement import Judgement
from control.rules.widening import widened
from trainmaster.rule import AlertState, Rule


class Watch:
    """One rule on one run, after the steps so far."""

    def __init__(
        self, rule: Rule, members: tuple[str, ...], *, max_firings: int | None = MAX_FIRINGS
    ) -> None:
        self.rule = rule
        self.members = members
        self.last_step = 0
        self._detector = detectors.build(rule.when, rule.metric, len(members))
        self._unless = (
            detectors.build(rule.unless, rule.metric, len(members))
            if rule.unless is not None
            else None
        )
        self._folds = [Fold(rule.for_, max_firings=max_firings) for _ in members]
        self._values: list[float | None] = [None] * len(members)
        self._bad_values: list[float | None] = [None] * len(members)
        self._bars = np.full(len(members), math.nan)
        self._settled_after = 0
        self.judgements: tuple[Judgement, ...] = self._judged()

    def take(self, frame: Frame) -> None:
        """Take further steps; those of one lineage, ascending."""
        if not len(frame):
            return
        exempt = self._exempt(frame)
        found = self._detector.signs(frame, exempt)
        codes = widened(frame, found.codes).copy()
        codes[:, exempt] = np.where(codes[:, exempt] == signs.SICK, signs.SICK, signs.SILENT)
        if self._unless is not None:
            excused = self._unless.signs(frame, exempt).codes >= signs.BAD
            codes[excused & (codes != signs.SICK)] = signs.SILENT
        self._bars = found.bars
        column = frame.column(self.rule.metric)
        for member, fold in enumerate(self._folds):
            fold.add(
                frame.steps, frame.at, codes[member], found.since[member], found.counts[member]
            )
            measured = np.flatnonzero(column.measured[member])
            if len(measured):
                self._values[member] = float(column.values[member][measured[-1]])
            place = fold.last_bad_place
            if place is not None:
                known = bool(column.measured[member][place])
                self._bad_values[member] = float(column.values[member][place]) if known else None
        self.last_step = int(frame.steps[-1])
        self.judgements = self._judged()

    def _exempt(self, frame: Frame) -> Bools:
        exempt: Bools = frame.steps <= self.rule.warmup_steps
        if self.rule.settle_steps:
            begun = np.maximum.accumulate(np.where(frame.begins, frame.steps - 1, -1))
            begun = np.where(begun < 0, self._settled_after - self.rule.settle_steps, begun)
            exempt = exempt | (frame.steps <= begun + self.rule.settle_steps)
            self._settled_after = int(begun[-1]) + self.rule.settle_steps
        return exempt

    def _judged(self) -> tuple[Judgement, ...]:
        return tuple(
            self._of(member, scope, fold)
            for member, (scope, fold) in enumerate(zip(self.members, self._folds, strict=True))
        )

    def _of(self, member: int, scope: str, fold: Fold) -> Judgement:
        state: AlertState = "inactive"
        if fold.is_firing:
            state = "firing"
        elif fold.first_bad_step is not None:
            state = "pending"
        elif fold.was_resolved:
            state = "resolved"
        troubled = state in {"firing", "pending"}
        bar = float(self._bars[member])
        waited = fold.is_firing and (
            fold.last_step - fold.firings[-1].fired_step >= self.rule.patience_steps
        )
        return Judgement(
            self.rule,
            scope,
            state,
            self._bad_values[member] if troubled else self._values[member],
            None if math.isnan(bar) else bar,
            fold.first_bad_step,
            fold.last_bad_step if troubled else None,
            tuple(fold.firings),
            waited,
            flaps(fold.firings, self.rule.for_, last_step=fold.last_step, last_at=fold.last_at),
        )
