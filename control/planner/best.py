"""The best plan so far: the one that is judged best, and of those that are equal the simplest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from control.planner.choices import levels
from control.planner.cost import Model, Verdict
from control.planner.setting import Draft
from trainmaster.cells import RECOMPUTES

TIE = 1e-9
"""Relative: plans closer than this are equally fast, and the simpler one is taken."""

NONE = Verdict(math.inf, (), 0.0, 0.0, 0.0, math.inf)


NEAR = 0.1
"""By how much a finalist may be worse than the best."""
MOST_FINALISTS = 16


@dataclass
class Best:
    """The best draft so far.

    Attributes:
        keeps_near: whether drafts that are nearly as good are remembered.
    """

    draft: Draft | None = None
    verdict: Verdict = NONE
    keeps_near: bool = False
    _near: dict[Draft, float] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """Its seconds per step; infinite while there is none."""
        return self.verdict.step_s

    @property
    def worth(self) -> float:
        """What it is compared by."""
        return self.verdict.worth

    def offer(self, draft: Draft, verdict: Verdict) -> bool:
        """Take `draft` if it is faster, or as fast and simpler; return whether it was taken."""
        here, there = self.verdict.worth, verdict.worth
        if there == math.inf:
            return False
        if self.keeps_near and there <= here * (1 + NEAR):
            self._near[draft] = there
        if self.draft is not None:
            tie = abs(there - here) <= TIE * here
            if there >= here and not tie:
                return False
            if tie and _simplicity(draft) >= _simplicity(self.draft):
                return False
        self.draft, self.verdict = draft, verdict
        return True

    def finalists(self) -> list[Draft]:
        """Return the best draft, and those that were found nearly as good, best first."""
        near = sorted(self._near.items(), key=lambda each: each[1])
        others = [draft for draft, worth in near if worth <= self.worth * (1 + NEAR)]
        first = [] if self.draft is None else [self.draft]
        return [*first, *(draft for draft in others if draft != self.draft)][:MOST_FINALISTS]


def _simplicity(draft: Draft) -> tuple[object, ...]:
    setting = draft.setting
    return (
        draft.nodes,
        draft.replicas,
        draft.stages,
        setting.zero,
        setting.offload,
        RECOMPUTES.index(setting.recompute),
        setting.virtual,
        sorted((pipe.kinds, pipe.layers, pipe.micro_batches) for pipe in draft.pipes),
        -setting.micro_batch,
        setting.bucket is not None,
        setting.bucket or 0.0,
    )


def offer(model: Model, draft: Draft, best: Best) -> bool:
    """Judge a draft with each ZeRO level that its pipelines were sought for and each choice of
    bucket; return whether it was taken.
    """
    s, taken = model.scenario, False
    for setting in levels(s, draft.setting):
        if not model.fits(Draft(setting, draft.pipes)):
            continue
        for bucket in s.buckets if draft.replicas > 1 else s.buckets[:1]:
            judged = Draft(setting._replace(bucket=bucket), draft.pipes)
            taken |= best.offer(judged, model.verdict(judged))
        if not s.gains_by_sharing:
            break  # what shares more takes as long
    return taken
