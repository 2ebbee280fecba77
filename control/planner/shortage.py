"""Whether a plan that is given fits into the memory of given nodes."""

from __future__ import annotations

from collections.abc import Sequence

from control.planner.answer import asked_for
from control.planner.fleet import fleet_scenario
from control.planner.machine import Machine
from trainmaster.errors import SpecError
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo


def shortage(
    spec: RunSpec, workload: WorkloadInfo, machines: Sequence[Machine], plan: Plan
) -> str | None:
    """Return what `plan` lacks of the memory of `machines`, as a clause with the numbers; None
    where it fits, and where the nodes or the workload do not tell of their memory.
    """
    if all(machine.memory_bytes is None for machine in machines):
        return None
    try:
        scenario = fleet_scenario(machines, spec, workload)
    except SpecError:  # described before layers were measured
        return None
    try:
        asked_for(scenario, plan)
    except SpecError as error:
        return str(error.problems[0].message)
    return None
