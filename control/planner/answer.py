"""A plan as outsiders get it: nodes by index, with its prediction and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from control.planner import simulate
from control.planner.bound import lower_bound
from control.planner.cost import Model
from control.planner.explain import explain
from control.planner.placing import Placed, place
from control.planner.reading import read_scenario
from control.planner.scenario import Scenario
from control.planner.search import Found, never, search
from control.planner.setting import Draft, Pipe, Setting
from control.planner.tensor import shared
from trainmaster.errors import Problem, SpecError
from trainmaster.plan import Plan
from trainmaster.schedules import fused, named

MAX_BARS = 4000
SEARCHING = 0.7
"""Of a time limit, what the search may take."""


def answer(
    given: object, *, clock: Callable[[], float], limit_s: float | None = None
) -> dict[str, Any]:
    """Return the plan for a scenario in plain values.

    Args:
        clock: seconds, for how long the search took, and to end it in time.
        limit_s: how long the search may take; None means as long as it needs. A scenario may ask
            for less (`time_limit_s`); then some of that is left for the explanation.

    Raises:
        SpecError: what is wrong with the scenario, or that no plan fits.
    """
    started = clock()
    scenario = read_scenario(given)
    if scenario.time_limit_s is not None:
        limit_s = min(SEARCHING * scenario.time_limit_s, limit_s or math.inf)
    stop = never if limit_s is None else lambda: clock() - started > limit_s
    found = search(scenario, stop=stop)
    return told(found, clock() - started)


def asked_for(scenario: Scenario, plan: Plan) -> Found:
    """Return what is to be expected of a plan that is given: its pipelines on the fastest nodes
    first, or where it names them.

    Raises:
        SpecError: there are fewer nodes than it has stages, or one lacks memory for its part.
    """
    setting = Setting(
        plan.micro_batch,
        plan.schedule,
        plan.zero,
        plan.recompute,
        float(plan.bucket_bytes),
        plan.virtual,
        plan.offload != "none",
        plan.tensor,
    )
    scenario = shared(scenario, plan.tensor)
    free = {kind: list(members) for kind, members in enumerate(scenario.members)}
    pipes: list[Pipe] = []
    placed: Placed = []
    for replica, pipeline in enumerate(plan.pipelines):
        nodes = [
            _taken(scenario, free, pipeline.nodes[at : at + 1], replica)
            for at in range(0, plan.ranks_of(pipeline), plan.tensor)
        ]
        kinds = [scenario.kind_of[node] for node in nodes]
        row = tuple(kinds[place] for place in setting.places(len(pipeline.layers)))
        pipes.append(Pipe(row, pipeline.layers, pipeline.micro_batches))
        placed.append([nodes])
    model = Model(scenario, asked={tuple(pipes): placed})
    draft = Draft(setting, tuple(pipes))
    for replica, pipe in enumerate(pipes):
        for at, need in enumerate(model.memory(pipe, setting, draft.replicas)):
            have = scenario.kinds[pipe.kinds[at]].mem
            if need > have:
                message = f"its place {at} needs {need:.4g} bytes, its node has {have:.4g}"
                raise SpecError([Problem(f"parallel.pipelines[{replica}]", message)])
    return Found(
        scenario,
        draft,
        model.verdict(draft),
        lower_bound(scenario),
        exact=False,
        simulated=model.simulated,
        stopped=False,
        model=model,
    )


def _taken(
    scenario: Scenario, free: dict[int, list[int]], names: Sequence[str], replica: int
) -> int:
    """Take the node of that name, or the fastest that is free."""
    order = sorted(free, key=lambda kind: (-scenario.speed[kind], kind))
    for kind in order:
        for node in free[kind]:
            if not names or scenario.names[node].partition("/")[0] == names[0]:
                free[kind].remove(node)
                return node
    wanted = f"a free slot on {names[0]}" if names else "as many free slots as it has stages"
    raise SpecError([Problem(f"parallel.pipelines[{replica}]", f"needs {wanted}")])


def told(found: Found, search_s: float) -> dict[str, Any]:
    """Return a found plan, with everything that explains it."""
    placed = found.model.placed(found.draft)
    explained = explain(found, placed)
    return {
        "plan": plan_json(found.draft, placed),
        "step_time_s": found.verdict.step_s,
        "samples_per_s": found.scenario.global_batch / found.verdict.step_s,
        "goodput": goodput(found),
        "lower_bound_s": found.bound.step_s,
        "lower_bound_because": found.bound.because,
        "gap": found.gap,
        "exact": found.exact,
        "search_s": search_s,
        "robust": robust(found),
        "why": list(explained.why),
        "rejected": [
            {
                "family": each.family,
                "because": each.because,
                "step_time_s": each.step_s if math.isfinite(each.step_s) else None,
                "plan": None
                if each.draft is None
                else plan_json(each.draft, place(each.draft, found.scenario)),
            }
            for each in explained.rejected
        ],
        **explained.to_json(),
        "gantt": gantt(found.model, found.draft),
    }


def robust(found: Found) -> dict[str, Any] | None:
    """Return what the plan takes where figures are a little wrong; None where that was not asked
    for.
    """
    doubt, spread = found.scenario.doubt, found.spread
    if doubt is None or spread is None:
        return None
    return {
        "sigma": doubt.sigma,
        "samples": doubt.samples,
        "p50_step_time_s": spread.p50_s,
        "p90_step_time_s": spread.p90_s,
        "fastest_p90_step_time_s": spread.fastest_p90_s,
    }


def goodput(found: Found) -> dict[str, Any] | None:
    """Return what failures and checkpoints leave; None where no figures of them are told."""
    saving = found.saving
    if saving is None:
        return None
    useful_s = found.verdict.step_s * (1 + saving.overhead)
    return {
        "samples_per_s": found.scenario.global_batch / useful_s,
        "checkpoint_every_steps": saving.every_steps,
        "mtbf_s": saving.mtbf_s,
        "overhead_ratio": saving.overhead,
    }


def plan_json(draft: Draft, placed: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return a draft with its nodes as plain values."""
    setting = draft.setting
    return {
        "micro_batch": setting.micro_batch,
        "schedule": setting.schedule,
        **({"virtual": setting.virtual} if setting.virtual > 1 else {}),
        **({"offload": True} if setting.offload else {}),
        **({"tensor": setting.tensor} if setting.tensor > 1 else {}),
        "zero": setting.zero,
        "recompute": {"none": False, "full": True}.get(setting.recompute, setting.recompute),
        "bucket_bytes": setting.bucket,
        "pipelines": [
            {"nodes": list(nodes), "layers": list(pipe.layers), "micro_batches": pipe.micro_batches}
            for pipe, copies in zip(draft.pipes, placed, strict=True)
            for nodes in copies
        ],
    }


def gantt(model: Model, draft: Draft) -> dict[str, Any]:
    """Return the predicted step as bars: one pipeline of each form, as far as the bars go."""
    bars: list[dict[str, Any]] = []
    whole = True
    for pipeline, (pipe, crowd) in enumerate(zip(draft.pipes, model.crowds(draft), strict=True)):
        setting, n = draft.setting, pipe.micro_batches
        if len(bars) + 3 * len(pipe.kinds) * n > MAX_BARS:
            whole = False
            continue
        # Also with fewer micro-batches than stages, which `order_of` refuses.
        order = named(setting.schedule).generate(
            len(pipe.kinds) // setting.virtual, setting.virtual, n
        )
        _, found = simulate.run_order(
            setting.schedule,
            [fused(sequence) for sequence in order],
            model.costs(pipe, setting, (), crowd),
            setting.virtual,
        )
        bars += [
            {
                "pipeline": pipeline,
                "stage": bar.action.stage,
                "kind": str(bar.action.kind),
                "micro_batch": bar.action.micro_batch,
                "start_s": bar.start_s,
                "end_s": bar.end_s,
            }
            for bar in found
        ]
    verdict = model.verdict(draft)
    return {
        "bars": bars,
        "complete": whole,
        "copies": [pipe.copies for pipe in draft.pipes],
        "pipelines_end_s": list(verdict.pipe_s),
        "sync_end_s": verdict.sync_end_s,
    }
