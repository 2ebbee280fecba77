"""Of plans that are nearly as good, the one that holds up when the figures are a little wrong: each
is judged under the same samples of the nodes' and links' figures, and what nine of ten stay below
decides. Pure, and the same for the same scenario.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from control.planner.cost import Model, Verdict
from control.planner.doubt import Doubt
from control.planner.placing import place
from control.planner.scenario import NodeKind, Scenario
from control.planner.setting import Draft, Pipe

QUANTILE = 0.9


class Spread(NamedTuple):
    """A plan's seconds per step over the samples.

    Attributes:
        worth: what plans are compared by: what nine of ten samples stay below.
        fastest_p90_s: of the plan that is best as the figures stand.
    """

    p50_s: float
    p90_s: float
    worth: float
    fastest_p90_s: float


def steadiest(scenario: Scenario, doubt: Doubt, finalists: Iterable[Draft]) -> tuple[Draft, Spread]:
    """Return the finalist with the least p90 of what plans are compared by; on a tie, the first.

    Args:
        finalists: the best as the figures stand first.
    """
    models = [Model(each) for each in _samples(scenario, doubt)]
    judged = []
    for draft in finalists:
        placed = _apart(draft, scenario)
        judged.append((draft, [model.verdict(placed) for model in models]))
    chosen, verdicts = min(judged, key=lambda each: _quantile(_worths(each[1])))
    steps = [each.step_s for each in verdicts]
    fastest = [each.step_s for each in judged[0][1]]
    worth = _quantile(_worths(verdicts))
    return chosen, Spread(_quantile(steps, 0.5), _quantile(steps), worth, _quantile(fastest))


def _worths(verdicts: Iterable[Verdict]) -> list[float]:
    return [each.worth for each in verdicts]


def _quantile(values: list[float], share: float = QUANTILE) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _samples(scenario: Scenario, doubt: Doubt) -> list[Scenario]:
    """Return the scenario with other figures, so many times; each node is a kind of its own."""
    s, size = scenario, scenario.num_nodes
    kind_of = np.array(s.kind_of)
    bw, lat = s.bw[np.ix_(kind_of, kind_of)], s.lat[np.ix_(kind_of, kind_of)]
    random = np.random.default_rng(0)
    found = []
    for _ in range(doubt.samples):
        speeds = np.exp(doubt.sigma * random.standard_normal(size))
        kinds = (
            _as_fast(s.kinds[kind], float(speed))
            for kind, speed in zip(s.kind_of, speeds, strict=True)
        )
        found.append(
            s.replaced(
                kinds=tuple(kinds),
                kind_of=tuple(range(size)),
                members=tuple((node,) for node in range(size)),
                bw=bw * np.exp(doubt.sigma * random.standard_normal((size, size))),
                lat=lat * np.exp(doubt.sigma * random.standard_normal((size, size))),
            )
        )
    return found


def _as_fast(kind: NodeKind, factor: float) -> NodeKind:
    """Return a node whose passes take so many times less."""
    timed = tuple(each.times(1 / factor) for each in kind.timed)
    return replace(kind, flops=factor * kind.flops, t0=kind.t0 / factor, timed=timed)


def _apart(draft: Draft, scenario: Scenario) -> Draft:
    """Return the draft where each node is a kind of its own."""
    pipes = []
    for pipe, copies in zip(draft.pipes, place(draft, scenario), strict=True):
        places = draft.setting.places(len(pipe.kinds))
        pipes += [
            Pipe(tuple(nodes[each] for each in places), pipe.layers, pipe.micro_batches)
            for nodes in copies
        ]
    return Draft(draft.setting, tuple(pipes))
