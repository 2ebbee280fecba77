"""A plan as outsiders get it: nodes by index, with its prediction and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from control.planner import simulate
from control.planner.cost import Draft, Model
from control.planner.explain import explain
from control.planner.reading import read_scenario
from control.planner.scenario import Scenario
from control.planner.search import Found, never, search
from trainmaster import sequences

MAX_BARS = 4000
Placed = list[list[list[int]]]


def answer(
    given: object, *, clock: Callable[[], float], limit_s: float | None = None
) -> dict[str, Any]:
    """Return the plan for a scenario in plain values.

    Args:
        clock: seconds, for how long the search took, and to end it in time.
        limit_s: how long the search may take; None means as long as it needs.

    Raises:
        SpecError: what is wrong with the scenario, or that no plan fits.
    """
    started = clock()
    scenario = read_scenario(given)
    stop = never if limit_s is None else lambda: clock() - started > limit_s
    found = search(scenario, stop=stop)
    return told(found, clock() - started)


def told(found: Found, search_s: float) -> dict[str, Any]:
    """Return a found plan, with everything that explains it."""
    placed = place(found.draft, found.scenario)
    explained = explain(found, placed)
    return {
        "plan": plan_json(found.draft, placed),
        "step_time_s": found.verdict.step_s,
        "samples_per_s": found.scenario.global_batch / found.verdict.step_s,
        "lower_bound_s": found.bound.step_s,
        "lower_bound_because": found.bound.because,
        "gap": found.gap,
        "exact": found.exact,
        "search_s": search_s,
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


def place(draft: Draft, scenario: Scenario) -> Placed:
    """Return for each pipe, for each copy, the node of each stage: the first free one of its
    kind.
    """
    free = [iter(members) for members in scenario.members]
    return [
        [[next(free[kind]) for kind in pipe.kinds] for _ in range(pipe.copies)]
        for pipe in draft.pipes
    ]


def plan_json(draft: Draft, placed: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return a draft with its nodes as plain values."""
    setting = draft.setting
    return {
        "micro_batch": setting.micro_batch,
        "schedule": setting.schedule,
        "zero": setting.zero,
        "recompute": setting.recompute,
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
    for pipeline, pipe in enumerate(draft.pipes):
        ranks, n = len(pipe.kinds), pipe.micro_batches
        if len(bars) + 2 * ranks * n > MAX_BARS:
            whole = False
            continue
        generate = sequences.gpipe if draft.setting.schedule == "gpipe" else sequences.one_f_one_b
        order = generate(ranks, 1, n)
        name = draft.setting.schedule
        _, found = simulate.run_order(name, order, model.costs(pipe, draft.setting), 1)
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
