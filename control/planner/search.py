"""The search for the best plan: exhaustive on small clusters, seeds and local search beyond.

Deterministic: how much is tried follows from the scenario alone. `stop` may cut it short, and then
the best plan so far is what there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from control.planner.bound import Bound, lower_bound, settings
from control.planner.cost import Draft, Model, Verdict
from control.planner.exact import Best, Exact, work_estimate
from control.planner.merging import apart, merged
from control.planner.refine import refine
from control.planner.scenario import Scenario
from control.planner.seeds import (
    Mix,
    by_knapsack,
    improved,
    judge,
    plain,
    quick_mix,
    replica_choices,
)
from trainmaster.errors import Problem, SpecError

EXACT_WORK = 4_000_000.0
"""Stages of cuts that an exhaustive search may have to judge for it to be begun."""

SMALL = 8
MIDDLE = 128


def never() -> bool:
    """Say that time is not up."""
    return False


QUICK_MIXES = 16
"""Nodes up to which a quick search tries more than the plain plans."""
QUICK_TRIES = 12


@dataclass
class Found:
    """The best plan of a search.

    Attributes:
        exact: whether no better plan exists.
        bound: what no plan can beat.
        simulated: how many different pipelines were simulated.
        stopped: whether the search was cut short, by `stop` or since there was too much to try.
    """

    scenario: Scenario
    draft: Draft
    verdict: Verdict
    bound: Bound
    exact: bool
    simulated: int
    stopped: bool
    model: Model = field(repr=False)

    @property
    def gap(self) -> float:
        """By how much the plan takes longer than the bound, as a share of the bound."""
        return self.verdict.step_s / self.bound.step_s - 1


def search(scenario: Scenario, *, stop: Callable[[], bool] = never) -> Found:
    """Return the best plan that can be found.

    Raises:
        SpecError: no plan fits; the message says what is lacking.
    """
    model, best = Model(scenario), Best()
    _seed(model, best, stop)
    if best.draft is None:
        plain(model, best)
    estimate = (
        work_estimate(
            scenario.counts, scenario.layers.count, min(scenario.max_stages, scenario.num_nodes)
        )
        if scenario.num_nodes <= SMALL
        else math.inf
    )
    exact = cut_short = False
    if estimate <= EXACT_WORK:
        thorough = Exact(model, best, stop)
        thorough.search()
        exact, cut_short = not thorough.stopped, thorough.stopped
    if best.draft is None:
        raise SpecError([Problem("", misfit(scenario))])
    bound = lower_bound(scenario)
    if exact:
        bound = Bound(best.step_s, "every plan was tried or ruled out by a bound")
    return Found(
        scenario,
        best.draft,
        best.verdict,
        bound,
        exact,
        model.simulated,
        cut_short or stop(),
        model,
    )


def quick(scenario: Scenario) -> Found:
    """Return a good plan within a fraction of a second, for where nothing may wait: the plain ones,
    equal mixes of all nodes, and what a few changes make of the best of them.

    Raises:
        SpecError: no plan fits; the message says what is lacking.
    """
    model, best = Model(scenario), Best()
    plain(model, best)
    if scenario.num_nodes <= QUICK_MIXES:
        for mix in mixes_of(model)[:2]:
            judge(model, mix.setting, mix.shapes, best)
            judge(model, mix.setting, improved(model, mix.setting, mix.shapes), best)
        refine(model, best, tries=QUICK_TRIES, stop=never)
    if best.draft is None:
        raise SpecError([Problem("", misfit(scenario))])
    return Found(
        scenario,
        best.draft,
        best.verdict,
        lower_bound(scenario),
        False,
        model.simulated,
        True,
        model,
    )


def _seed(model: Model, best: Best, stop: Callable[[], bool]) -> None:
    s = model.scenario
    large = s.num_nodes > MIDDLE
    alike = merged(s)
    if alike is not None:
        # Sought over kinds that are nearly alike, then fitted to what they are.
        rough, among = Model(alike[0]), Best()
        _sow(rough, among, stop)
        refine(rough, among, tries=100, stop=stop)
        if among.draft is not None:
            shapes = apart(s, among.draft, alike[1])
            judge(model, among.draft.setting, shapes, best)
            judge(model, among.draft.setting, improved(model, among.draft.setting, shapes), best)
    if alike is None or best.draft is None:
        _sow(model, best, stop)
    refine(model, best, tries=600 if large or s.num_nodes <= 2 * SMALL else 250, stop=stop)


def _sow(model: Model, best: Best, stop: Callable[[], bool]) -> None:
    s = model.scenario
    large = s.num_nodes > MIDDLE
    mixes = mixes_of(model)
    for mix in mixes[: 8 if large else 3]:
        if stop() and best.draft is not None:
            return
        judge(model, mix.setting, mix.shapes, best)
        judge(model, mix.setting, improved(model, mix.setting, mix.shapes), best)
    chosen = list(dict.fromkeys(mix.setting for mix in mixes)) or settings(s)
    if s.num_nodes > 1:
        for setting in chosen[:2]:
            if stop() and best.draft is not None:
                return
            by_knapsack(
                model,
                setting,
                best,
                kept=120 if large else 40,
                replicas=max(2, min(s.max_replicas, s.num_nodes // 6)),
                floor_s=lower_bound(s).step_s,
                stop=stop,
            )


def mixes_of(model: Model) -> list[Mix]:
    """Return equal mixes, best first by a quick estimate; without the slowest kinds only where the
    mix of all is among the best.
    """
    s = model.scenario
    found = []
    for setting in settings(s):
        for replicas in replica_choices(s.num_nodes, s.max_replicas):
            mix = quick_mix(model, setting, replicas, 0)
            if mix is not None:
                found.append(mix)
    found.sort(key=lambda mix: mix.step_s)
    chosen = list(dict.fromkeys(mix.setting for mix in found))[:2] or settings(s)
    for setting in chosen:
        for drop in range(1, min(len(s.kinds), 3)):
            for replicas in replica_choices(s.num_nodes, s.max_replicas):
                mix = quick_mix(model, setting, replicas, drop)
                if mix is not None:
                    found.append(mix)
    found.sort(key=lambda mix: mix.step_s)
    return found


def misfit(scenario: Scenario) -> str:
    """Return why no plan fits, with the numbers."""
    s = scenario
    params = float(s.layers.params.sum())
    need = params * (16 if max(s.zeros) == 0 else 4)
    have = sum(kind.mem * count for kind, count in zip(s.kinds, s.counts, strict=True))
    largest = float(s.layers.params.max()) * (16 if max(s.zeros) == 0 else 4)
    return (
        f"the model fits in no way: its {params:g} parameters need at least {need:.4g} bytes "
        f"beside activations, its largest layer {largest:.4g}; the nodes have {have:.4g} bytes "
        f"together, the largest {max(kind.mem for kind in s.kinds):.4g}. Allow smaller "
        "micro-batches, ZeRO 1, recompute or more stages, or add nodes"
    )
