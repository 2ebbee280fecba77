"""Another plan for a run whose nodes turned out to be faster or slower than was planned for.

What it costs to go over (the step is not lost, but a checkpoint is written and read, and ranks
start) is set against what the rest of the run gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from control.planner.answer import asked_for
from control.planner.fleet import fleet_scenario, runnable
from control.planner.machine import Machine
from control.planner.search import quick
from trainmaster.errors import SpecError
from trainmaster.layout import roles
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

DRIFT = 0.15
"""Nodes that are off by no more are as they were planned for."""

MIGRATION_S = 60.0
"""What going over to another plan is taken to cost, where nothing longer was measured."""


@dataclass(frozen=True, slots=True)
class Replanned:
    """A plan that is worth going over to, placed by node, and why."""

    plan: Plan
    because: str


def replanned(
    spec: RunSpec,
    workload: WorkloadInfo,
    machines: Sequence[Machine],
    plan: Plan,
    compute_s: Mapping[int, float],
    *,
    steps_left: int,
    migration_s: float = MIGRATION_S,
) -> Replanned | str:
    """Return a better plan for nodes as fast as measured; or why there is none, as a clause.

    Args:
        machines: those that may be used, as the plan was made for.
        plan: the one that runs, placed by node.
        compute_s: rank -> seconds of compute of a step, as measured lately.
        migration_s: what going over costs.
    """
    ratios = _ratios(plan, planned_seconds(machines, spec, workload, plan), compute_s)
    drifted = {node: each for node, each in ratios.items() if abs(each - 1) > DRIFT}
    if not drifted:
        return f"no node is off by more than {DRIFT:.0%} of what it was planned for"
    scenario = fleet_scenario(
        [_slowed(each, ratios.get(each.name, 1.0)) for each in machines], spec, workload
    )
    try:
        stays_s = asked_for(scenario, plan).verdict.step_s
        found = quick(scenario)
    except SpecError as error:
        return str(error.problems[0].message)
    told = ", ".join(f"{node} takes {each:.2f} times as long" for node, each in drifted.items())
    gain_s = (stays_s - found.verdict.step_s) * steps_left
    if gain_s <= migration_s:
        return (
            f"{told} as planned, and another plan would save {max(0.0, gain_s):.3g} s over the "
            f"{steps_left} steps that are left, which going over to it costs ({migration_s:.3g} s)"
        )
    return Replanned(
        runnable(found, spec, workload),
        f"{told} as planned: another plan takes {found.verdict.step_s:.3g} s a step instead of "
        f"{stays_s:.3g} s, which saves {gain_s:.3g} s over {steps_left} steps for "
        f"{migration_s:.3g} s of going over",
    )


def planned_seconds(
    machines: Sequence[Machine], spec: RunSpec, workload: WorkloadInfo, plan: Plan
) -> dict[int, float]:
    """Return the seconds of compute of a step that each rank of a plan was planned to take."""
    scenario = fleet_scenario(machines, spec, workload)
    kinds = {
        name.partition("/")[0]: kind
        for name, kind in zip(scenario.names, scenario.kind_of, strict=True)
    }
    both = scenario.seconds(plan.micro_batch, plan.recompute).both
    found = {}
    for role in roles(plan):
        kind = kinds.get(role.node or "")
        if kind is None:
            continue
        of_kind = sum(both[kind][layer + 1] - both[kind][layer] for layer in role.layers)
        found[role.rank] = float(of_kind) * plan.pipelines[role.replica].micro_batches
    return found


def _ratios(
    plan: Plan, planned_s: Mapping[int, float], compute_s: Mapping[int, float]
) -> dict[str, float]:
    """Return node -> how many times as long as planned its slowest rank takes."""
    found: dict[str, float] = {}
    for role in roles(plan):
        planned, took = planned_s.get(role.rank), compute_s.get(role.rank)
        if planned and took:
            node = role.node or ""
            found[node] = max(found.get(node, 0.0), took / planned)
    return found


def _slowed(machine: Machine, ratio: float) -> Machine:
    return replace(
        machine,
        speed=(machine.speed or 1.0) / ratio,
        layer_time_s=None if machine.layer_time_s is None else machine.layer_time_s * ratio,
        flops=None if machine.flops is None else machine.flops / ratio,
        timed=tuple(each.times(ratio) for each in machine.timed),
    )
