"""A plan for `parallel: auto`.

Slots that are taken to be alike get equal replicas of the whole model, as many as the batch allows:
they have no pipeline bubble and need no cut, so they are the best choice as long as the model fits
on each. Where nodes are known not to be alike, by calibration or by what they say of themselves (an
emulated device's speed, seconds per layer, memory), the planner looks for layers, shares and nodes
that suit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.planner import fleet
from control.planner.machine import Machine, ablest, machine_of, settled
from control.planner.search import quick
from control.snapshot import Node
from trainmaster.calibration import workload_key
from trainmaster.errors import SpecError
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

MAX_SLOTS = 64
"""Beyond so many even a quick search takes longer than a turn may: slots are taken to be alike."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan, and why this one, as a sentence. Its pipelines name nodes where that matters."""

    plan: Plan
    because: str


def choose(spec: RunSpec, workload: WorkloadInfo, rooms: Sequence[tuple[Node, int]]) -> Choice:
    """Return the plan for `spec` on nodes with so many free slots each; as asked where the spec is
    explicit.

    Raises:
        SpecError: what the spec asks does not fit the workload, or no plan fits into the memory of
            the nodes.
    """
    global_batch = spec.train.global_batch
    if spec.parallel != "auto":
        plan = resolve(spec.parallel, num_layers=workload.num_layers, global_batch=global_batch)
        return Choice(plan, "The plan is as the spec asks.")
    machines = machines_of(spec, rooms, workload)
    choice = choose_for(spec, workload, machines)
    others = {node.id for node, count in rooms if count} - {machine.name for machine in machines}
    if not others:
        return choice
    limit = f"placement.nodes is {spec.reach.nodes}: {', '.join(sorted(others))} not taken."
    return replace(choice, because=f"{choice.because} {limit}")


def choose_for(spec: RunSpec, workload: WorkloadInfo, machines: Sequence[Machine]) -> Choice:
    """Return the plan for a spec that leaves it open.

    Raises:
        SpecError: no plan fits into the memory of the nodes.
    """
    machines = fleet.of_one_kind(machines, spec, workload)
    if is_sought(machines):
        return _planned(spec, workload, machines)
    return _even(spec, workload, max(1, sum(machine.slots for machine in machines)))


def machines_of(
    spec: RunSpec, rooms: Sequence[tuple[Node, int]], workload: WorkloadInfo
) -> list[Machine]:
    """Return nodes with free slots as planning knows them for a workload: of more than
    `placement.nodes`, those that the run is on and those that compute most.
    """
    key = workload_key(spec.workload, spec.params, workload.code_sha256)
    machines = [
        machine_of(
            node.id,
            count,
            node.profile,
            precision=spec.train.precision,
            device=node.device,
            workload=key,
        )
        for node, count in rooms
        if count
    ]
    held = {node.id for node, _ in rooms if node.held_here}
    return ablest(machines, spec.reach.nodes, first=held)


def is_sought(machines: Sequence[Machine]) -> bool:
    """Return whether a plan is sought for these nodes as a run begins; else it is equal replicas of
    the whole model.
    """
    return can_tell_apart(machines) and sum(each.slots for each in machines) <= MAX_SLOTS


def can_tell_apart(machines: Sequence[Machine]) -> bool:
    """Return whether these nodes are known to differ, by figures that can be compared."""
    timed = [machine.layer_time_s is not None for machine in machines]
    if any(timed) and not all(timed):
        return False
    machines = settled(machines)
    by_measure = all(machine.flops for machine in machines)
    figures = {
        (
            machine.flops if by_measure else machine.speed,
            machine.layer_time_s,
            machine.memory_bytes,
            machine.timed,
            tuple(machine.links.items()),
        )
        for machine in machines
    }
    links = {link for machine in machines for link in machine.measured.values()}
    is_small = any(machine.memory_bytes is not None for machine in machines)
    return len(figures) > 1 or len(links) > 1 or is_small


def _planned(spec: RunSpec, workload: WorkloadInfo, machines: Sequence[Machine]) -> Choice:
    try:
        scenario = fleet.fleet_scenario(machines, spec, workload)
    except SpecError:  # described before layers were measured
        return _even(spec, workload, sum(machine.slots for machine in machines))
    found = quick(scenario)
    plan = fleet.runnable(found, spec, workload)
    used = {node for pipeline in plan.pipelines for node in pipeline.nodes}
    idle = sorted({machine.name for machine in machines} - used)
    told = (
        f"Planned for unequal nodes: {plan.replicas} replicas, layers "
        f"{[list(each.layers) for each in plan.pipelines]}, shares {plan.shares}; a step should "
        f"take {plan.predicted.step_time_s:.3g} s."
    )
    if idle:
        told += f" {', '.join(idle)} would make it slower and is left out."
    return Choice(plan, told)


def _even(spec: RunSpec, workload: WorkloadInfo, num_slots: int) -> Choice:
    global_batch = spec.train.global_batch
    replicas = max(
        count for count in range(1, min(num_slots, global_batch) + 1) if global_batch % count == 0
    )
    plan = resolve(
        ParallelAsk(replicas=replicas),
        num_layers=workload.num_layers,
        global_batch=global_batch,
    )
    return Choice(
        plan,
        f"{replicas} equal replicas of the whole model on {num_slots} free slots: the most that "
        f"divide a batch of {global_batch} samples evenly, without a pipeline bubble.",
    )
