"""The search for the best plan: exhaustive on small clusters, seeds and local search beyond.

Deterministic: how much is tried follows from the scenario alone. `stop` may cut it short, and then
the best plan so far is what there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from control.planner.best import Best
from control.planner.bound import Bound, lower_bound
from control.planner.choices import settings
from control.planner.cost import Model, Verdict
from control.planner.exact import Exact
from control.planner.groups import work_estimate
from control.planner.merging import apart, coarse, merged
from control.planner.refine import refine
from control.planner.reschedule import rescheduled
from control.planner.robust import Spread, steadiest
from control.planner.scenario import Scenario, unlinked
from control.planner.seeds import (
    Mix,
    by_knapsack,
    improved,
    judge,
    plain,
    quick_mix,
    replica_choices,
)
from control.planner.setting import Draft
from control.planner.tensor import shared
from control.planner.worth import Saving
from trainmaster.errors import Problem, SpecError

EXACT_WORK = 4_000_000.0
"""Stages of cuts that an exhaustive search may have to judge for it to be begun."""

SMALL = 8
MIDDLE = 128
PLAIN_FIRST = 256
"""Up to so many nodes the plain plans are tried before any other: the whole model on some of the
fastest nodes alone is none of the mixes.
"""


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
        spread: what becomes of it where figures are a little wrong, if that was asked for.
    """

    scenario: Scenario
    draft: Draft
    verdict: Verdict
    bound: Bound
    exact: bool
    simulated: int
    stopped: bool
    model: Model = field(repr=False)
    spread: Spread | None = None

    @property
    def worth(self) -> float:
        """What it is compared by."""
        return self.verdict.worth if self.spread is None else self.spread.worth

    @property
    def saving(self) -> Saving | None:
        """How often the plan saves; None where no figures of failures are told."""
        worth = self.scenario.worth
        if worth is None:
            return None
        return worth.saving(self.verdict.step_s, self.draft.counts(len(self.scenario.kinds)))

    @property
    def gap(self) -> float:
        """By how much the plan takes longer than the bound, as a share of the bound."""
        return self.verdict.step_s / self.bound.step_s - 1


def search(scenario: Scenario, *, stop: Callable[[], bool] = never) -> Found:
    """Return the best plan that can be found.

    Raises:
        SpecError: no plan fits; the message says what is lacking.
    """
    return _best_sharing(coarse(scenario), lambda each: _searched(each, stop))


def _best_sharing(scenario: Scenario, seek: Callable[[Scenario], Found]) -> Found:
    """Return the best of what is found with places of one node, and with places of several."""
    found: list[Found] = []
    refused: list[SpecError] = []
    for tensor in scenario.tensors:
        try:
            found.append(seek(shared(scenario, tensor)))
        except SpecError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    best = min(found, key=lambda each: each.worth)
    if len(scenario.tensors) == 1:
        return best
    bound = min((each.bound for each in found), key=lambda each: each.step_s)
    return replace(
        best,
        bound=bound,
        exact=all(each.exact for each in found),
        simulated=sum(each.simulated for each in found),
        stopped=any(each.stopped for each in found),
    )


def _searched(scenario: Scenario, stop: Callable[[], bool]) -> Found:
    model, best = Model(scenario), Best(keeps_near=scenario.doubt is not None)
    if scenario.num_nodes <= PLAIN_FIRST:
        plain(model, best, light=True)
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
        # Of plans that are cut as well as others it keeps one, wherever its nodes are; and on other
        # nodes pipelines might not share the links that they do on these.
        kept = scenario.domains or model.crowded
        exact, cut_short = not (thorough.stopped or kept), thorough.stopped
    if best.draft is None:
        raise SpecError([Problem("", misfit(scenario))])
    bound = lower_bound(scenario)
    if rescheduled(model, best):
        exact = False
    if exact:
        bound = Bound(best.step_s, "every plan was tried or ruled out by a bound")
    draft, verdict, spread = best.draft, best.verdict, None
    if scenario.doubt is not None:
        draft, spread = steadiest(scenario, scenario.doubt, best.finalists())
        verdict, exact = model.verdict(draft), exact and draft == best.draft
    return Found(
        scenario,
        draft,
        verdict,
        bound,
        exact,
        model.simulated,
        cut_short or stop(),
        model,
        spread,
    )


def quick(scenario: Scenario) -> Found:
    """Return a good plan within a fraction of a second, for where nothing may wait: the plain ones,
    equal mixes of all nodes, and what a few changes make of the best of them.

    Raises:
        SpecError: no plan fits; the message says what is lacking.
    """
    return _best_sharing(scenario, _quickly)


def _quickly(scenario: Scenario) -> Found:
    model, best = Model(scenario), Best()
    plain(model, best, light=True)
    if best.draft is None:
        plain(model, best)
    if scenario.num_nodes <= QUICK_MIXES:
        for mix in (mixes_of(model, light=True) or mixes_of(model))[:2]:
            judge(model, mix.setting, mix.shapes, best)
            judge(model, mix.setting, improved(model, mix.setting, mix.shapes), best)
        refine(model, best, tries=QUICK_TRIES, stop=never)
        rescheduled(model, best)
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


def mixes_of(model: Model, *, light: bool = False) -> list[Mix]:
    """Return equal mixes, best first by a quick estimate; without the slowest kinds only where the
    mix of all is among the best.
    """
    s = model.scenario
    found = []
    for setting in settings(s, light=light):
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
    most = min(s.num_nodes, s.total(min(s.micro_batches)))
    if s.min_replicas > most:
        return (
            f"min_replicas is {s.min_replicas}, but {s.num_nodes} nodes and "
            f"{s.total(min(s.micro_batches))} micro-batches make at most {most} pipelines"
        )
    if s.worth is not None and all(map(math.isinf, _least_factors(s))):
        return (
            f"no plan gets on: a checkpoint (stall_s {s.worth.stall_s:.3g}) and a restart "
            f"(restart_s {s.worth.restart_s:.3g}) take hundreds of times as long as a node lives "
            f"between two failures (mtbf_s {max(s.worth.mtbf_s):.3g} at best)"
        )
    params, largest = float(s.layers.params.sum()), float(s.layers.params.max())
    choices = [s.states_of(zero, offload=offload) for zero in s.zeros for offload in s.offloads]
    need = params * min(states.per_param(1) for states in choices)
    alone = largest * min(states.per_param(s.num_nodes) + states.whole for states in choices)
    have = sum(kind.mem * count for kind, count in zip(s.kinds, s.counts, strict=True))
    return (
        f"the model fits in no way: its {params:g} parameters need at least {need:.4g} bytes "
        f"beside activations, its largest layer {alone:.4g}; the nodes have {have:.4g} bytes "
        f"together, the largest {max(kind.mem for kind in s.kinds):.4g}{_binding(s)}. Allow "
        "smaller micro-batches, ZeRO 1, recompute or more stages, or add nodes"
    )


def _least_factors(scenario: Scenario) -> list[float]:
    """Return by how much failures and checkpoints lengthen a step at the least, on one node of each
    kind.
    """
    kinds = range(len(scenario.kinds))
    worth = scenario.worth
    return (
        [worth.least_factor([int(kind == at) for kind in kinds]) for at in kinds] if worth else []
    )


def _binding(scenario: Scenario) -> str:
    """Return what else is in the way, as clauses."""
    s, told = scenario, ""
    if s.min_replicas > 1 and s.domains:
        told += f", which are in {len(set(s.domains))} domains, one for each copy of a layer"
    if s.min_replicas > 1:
        told += f", and min_replicas asks for {s.min_replicas} copies of the model"
    apart = unlinked(s)
    if apart:
        told += f", and pipelines cannot go over {apart[0]}, which has no links"
    return told
