"""Another plan for a run beside which nodes stand idle, because they joined after it began.

Going over costs a checkpoint, a start and the bytes that nodes must fetch for what they did not
hold; that is set against what the steps that are left gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from control.planner.answer import asked_for
from control.planner.automatic import MAX_SLOTS
from control.planner.fleet import ASSUMED_BW, WEIGHT_BYTES, fleet_scenario, runnable
from control.planner.machine import Machine
from control.planner.replan import MIGRATION_S, Replanned
from control.planner.search import quick
from trainmaster.errors import SpecError
from trainmaster.layout import roles
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

COLD_S = 30.0
"""What a node that has not trained yet takes to make its processes ready."""

KEPT_BYTES = WEIGHT_BYTES + 8.0
"""Of a checkpoint, per parameter: the weight and the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a step takes with the plan that runs and with the best one that was found."""

    plan: Plan
    stays_s: float
    step_s: float
    moved_s: float


@dataclass(frozen=True)
class _Question:
    """Told apart by its text, so that a question is answered once and not in each turn."""

    text: str
    spec: RunSpec = field(compare=False)
    workload: WorkloadInfo = field(compare=False)
    machines: tuple[Machine, ...] = field(compare=False)
    plan: Plan = field(compare=False)


def joined(
    spec: RunSpec,
    workload: WorkloadInfo,
    machines: Sequence[Machine],
    plan: Plan,
    *,
    steps_left: int,
    restart_s: float | None = None,
) -> Replanned | str:
    """Return a better plan for these nodes, some of which `plan` does not use; or why there is
    none, as a clause.

    Args:
        machines: all that the run may use, with the slots that it has there or could have.
        plan: the one that runs, placed by node.
        restart_s: what beginning an attempt took lately; None where that was not measured.
    """
    used = {node for pipeline in plan.pipelines for node in pipeline.nodes}
    idle = sorted(machine.name for machine in machines if machine.name not in used)
    if not idle:
        return "no node stands idle"
    if sum(machine.slots for machine in machines) > MAX_SLOTS:
        return f"more than {MAX_SLOTS} slots are not planned for while a run trains"
    text = "\n".join(
        (spec.model_dump_json(), workload.model_dump_json(), repr(machines), plan.model_dump_json())
    )
    found = _compared(_Question(text, spec, workload, tuple(machines), plan))
    if isinstance(found, str):
        return found
    # Ranks end and begin anew: twice what a beginning takes.
    costs_s = found.moved_s + (MIGRATION_S if restart_s is None else 2 * restart_s + COLD_S)
    gain_s = (found.stays_s - found.step_s) * steps_left
    taken = {node for pipeline in found.plan.pipelines for node in pipeline.nodes} - used
    told = (
        f"with {', '.join(sorted(taken) or idle)} a step would take {found.step_s:.3g} s instead "
        f"of {found.stays_s:.3g} s, which saves {gain_s:.3g} s over the {steps_left} steps that "
        f"are left; going over costs {costs_s:.3g} s"
    )
    return Replanned(found.plan, told) if gain_s > costs_s else told


@lru_cache(maxsize=64)
def _compared(question: _Question) -> Comparison | str:
    try:
        scenario = fleet_scenario(question.machines, question.spec, question.workload)
        stays_s = asked_for(scenario, question.plan).verdict.step_s
        found = quick(scenario)
        plan, step_s = runnable(found, question.spec, question.workload), found.verdict.step_s
    except SpecError as error:
        return str(error.problems[0].message)
    moved = _fetched_bytes(question.plan, plan, question.workload)
    links = scenario.bw[scenario.bw > 0]
    return Comparison(plan, stays_s, step_s, moved / float(links.min(initial=ASSUMED_BW)))


def _fetched_bytes(before: Plan, after: Plan, workload: WorkloadInfo) -> float:
    """Return the bytes of layers that the node with most of them did not hold before."""
    held = _layers_of(before)
    sizes = [float(layer.get("parameters", 0)) * KEPT_BYTES for layer in workload.layers]
    return max(
        (
            sum(sizes[layer] for layer in layers - held.get(node, set()))
            for node, layers in _layers_of(after).items()
        ),
        default=0.0,
    )


def _layers_of(plan: Plan) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for role in roles(plan):
        found.setdefault(role.node or "", set()).update(role.layers)
    return found
