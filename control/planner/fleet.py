"""From a spec, its workload and the nodes at hand to a scenario, and from a found plan to one that
the runtime carries out.

What was measured goes before what is stated (emulated speeds, layer times, memory and links).
Everything else is assumed, and each assumption is told as a warning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from control.planner.answer import place
from control.planner.machine import Machine, settled
from control.planner.scenario import Floats, Layers, NodeKind, Scenario, with_nodes
from control.planner.search import Found
from trainmaster.errors import Problem, SpecError
from trainmaster.plan import MIB, ParallelAsk, Pipeline, Plan, Prediction, plan_problems, resolve
from trainmaster.spec import NEED_WHOLE_PARAMETERS, RunSpec
from trainmaster.wire import WorkloadInfo

ASSUMED_FLOPS = 2e10
ASSUMED_BW = 1e9
ASSUMED_LAT_S = 2e-4
ASSUMED_KEPT = 12.0
"""Bytes that a layer keeps for its backward, per byte that it gives."""

SUM_BYTES = 8.0
"""Gradients are summed in float64."""

UNKNOWN_BYTES = 1e18
BUCKET_BYTES = float(25 * MIB)
MAX_SLOTS = 4096
MAX_MICRO_BATCHES = 100_000


def fleet_scenario(machines: Sequence[Machine], spec: RunSpec, workload: WorkloadInfo) -> Scenario:
    """Return the scenario of training `spec` on these machines, one node per slot.

    Raises:
        SpecError: there is no machine, or the workload does not tell what planning needs.
    """
    machines = settled(machines)
    slots = [machine for machine in machines for _ in range(machine.slots)]
    if not slots:
        raise SpecError([Problem("placement", "no node that is known could take a rank")])
    if len(slots) > MAX_SLOTS:
        raise SpecError([Problem("placement", f"{len(slots)} slots; at most {MAX_SLOTS}")])
    layers, told = _layers(workload)
    names, seen = [], dict.fromkeys((machine.name for machine in machines), 0)
    for machine in slots:
        names.append(machine.name if machine.slots == 1 else f"{machine.name}/{seen[machine.name]}")
        seen[machine.name] += 1
    unmeasured = [each.name for each in machines if each.layer_time_s is None and not each.flops]
    figures = [_figures(machine, is_measured=not unmeasured) for machine in slots]
    if unmeasured:
        told.append(
            f"no calibration of {_named(unmeasured)}: a device is taken for {ASSUMED_FLOPS:.0e} "
            "FLOP/s times its emulated speed, so compare plans by it, and trust no seconds"
        )
    elif any(machine.layer_time_s is None for machine in machines):
        told.append(
            "devices are taken to be as fast as at products of matrices, which small layers are not"
        )
    told += [doubt for machine in machines for doubt in machine.doubts]
    if any(machine.memory_bytes is None for machine in machines):
        told.append("the memory of some nodes is not known and was not checked")
    bw, lat, assumed = _links(slots)
    if assumed:
        told.append(
            f"links without figures are taken for {ASSUMED_BW:.0e} bytes/s and {ASSUMED_LAT_S:g} s"
        )
    ask = spec.parallel if isinstance(spec.parallel, ParallelAsk) else None
    batch = spec.train.global_batch
    least = -(-batch // MAX_MICRO_BATCHES)
    sizes = [size for size in divisors(batch) if size >= least]
    if ask is None:
        # The seed's band: at least four micro-batches a step, where the batch allows.
        sizes = [size for size in sizes if size <= batch // 4] or sizes[:1]
    scenario = Scenario(
        names=(),
        kinds=(),
        kind_of=(),
        members=(),
        bw=np.zeros((0, 0)),
        lat=np.zeros((0, 0)),
        layers=layers,
        global_batch=batch,
        micro_batches=tuple(sizes[:12]),
        schedules=("1f1b", "gpipe") if ask is None else (ask.schedule,),
        zeros=(0,) if _needs_whole_parameters(spec, workload) else (0, 1),
        buckets=(BUCKET_BYTES,),
        overlap=True,
        grad_bytes=SUM_BYTES,
        runtime=True,
        warnings=tuple(told),
    )
    return with_nodes(scenario, names, figures, bw, lat)


def _needs_whole_parameters(spec: RunSpec, workload: WorkloadInfo) -> bool:
    return workload.brings_optimizer or spec.train.optimizer.name in NEED_WHOLE_PARAMETERS


def divisors(total: int) -> list[int]:
    """Return all divisors of a number, ascending."""
    small = [size for size in range(1, math.isqrt(total) + 1) if total % size == 0]
    return small + [total // size for size in reversed(small) if size * size != total]


def _layers(workload: WorkloadInfo) -> tuple[Layers, list[str]]:
    told = [f"what layers keep for their backward is taken for {ASSUMED_KEPT:g} times their output"]
    columns: list[list[float]] = [[], [], [], []]
    for index, layer in enumerate(workload.layers):
        try:
            flops, params = float(layer["forward_flops"]), float(layer["parameters"])
            out = float(layer["output_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(
                [Problem("workload", f"layer {index} was described without {error}: describe anew")]
            ) from error
        # What counts no FLOP (an embedding) still moves its output.
        for column, value in zip(
            columns, (max(flops, out), params, out, ASSUMED_KEPT * out), strict=True
        ):
            column.append(value)
    if not columns[0]:
        raise SpecError([Problem("workload", "was described without layers")])
    return Layers(*(np.array(column) for column in columns)), told


def _named(names: Sequence[str]) -> str:
    first = ", ".join(names[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"


def _figures(machine: Machine, *, is_measured: bool) -> NodeKind:
    memory = float(machine.memory_bytes or UNKNOWN_BYTES)
    if machine.layer_time_s is not None:
        # Fixed seconds per layer: what the layer computes does not matter.
        return NodeKind("node", 1e24, memory, machine.layer_time_s)
    if is_measured and machine.flops:
        return NodeKind("node", machine.flops, memory, 0.0)
    return NodeKind("node", ASSUMED_FLOPS * (machine.speed or 1.0), memory, 0.0)


def _links(slots: Sequence[Machine]) -> tuple[Floats, Floats, bool]:
    size = len(slots)
    bw, lat = np.full((size, size), ASSUMED_BW), np.full((size, size), ASSUMED_LAT_S)
    assumed = False
    for row, source in enumerate(slots):
        for column, target in enumerate(slots):
            given = source.links.get(target.name)
            measured = source.measured.get(target.name)
            if measured is not None:
                lat[row, column], bw[row, column] = measured
            elif given is None:
                assumed |= row != column
            elif source.name != target.name:
                lat[row, column] = ASSUMED_LAT_S + given[0]
                if given[1] is not None:
                    bw[row, column] = 1 / (1 / given[1] + 1 / ASSUMED_BW)
    np.fill_diagonal(bw, 0.0)
    np.fill_diagonal(lat, 0.0)
    return bw, lat, assumed


def runnable(found: Found, spec: RunSpec, workload: WorkloadInfo) -> Plan:
    """Return the found plan as the runtime takes it, with what is predicted of it."""
    s, draft = found.scenario, found.draft
    setting = draft.setting
    pipelines, memory = [], []
    for pipe, copies in zip(draft.pipes, place(draft, s), strict=True):
        needs = found.model.memory(pipe, setting, draft.replicas)
        for nodes in copies:
            names = tuple(s.names[node].partition("/")[0] for node in nodes)
            pipelines.append(
                Pipeline(layers=pipe.layers, micro_batches=pipe.micro_batches, nodes=names)
            )
            memory += [math.ceil(need) for need in needs]
    plan = Plan(
        micro_batch=setting.micro_batch,
        schedule=setting.schedule,
        zero=1 if setting.zero == 1 else 0,
        bucket_bytes=round(setting.bucket or BUCKET_BYTES),
        pipelines=tuple(pipelines),
        predicted=Prediction(step_time_s=found.verdict.step_s, memory_bytes=memory),
    )
    problems = plan_problems(
        plan, num_layers=workload.num_layers, global_batch=spec.train.global_batch
    )
    assert not problems, f"the planner gave what the runtime refuses: {problems}"
    return plan


def asked(spec: RunSpec, workload: WorkloadInfo) -> Plan | None:
    """Return the plan that a spec spells out, None where it leaves the choice open.

    Raises:
        SpecError: what it spells out cannot be run.
    """
    if not isinstance(spec.parallel, ParallelAsk):
        return None
    return resolve(
        spec.parallel, num_layers=workload.num_layers, global_batch=spec.train.global_batch
    )
