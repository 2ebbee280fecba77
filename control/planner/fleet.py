"""From a spec, its workload and the nodes at hand to a scenario, and from a found plan to one that
the runtime carries out.

What was measured goes before what is stated (emulated speeds, layer times, memory and links).
Everything else is assumed, and each assumption is told as a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from control.planner.machine import Machine, settled
from control.planner.placing import place
from control.planner.scenario import Floats, Layers, NodeKind, Scenario, with_nodes
from control.planner.search import Found
from control.planner.setting import Setting
from control.planner.states import of_runtime
from trainmaster.cells import Offload, Zero
from trainmaster.errors import Problem, SpecError
from trainmaster.plan import MIB, ParallelAsk, Pipeline, Plan, Prediction
from trainmaster.resolution import plan_problems, resolve, workload_problems
from trainmaster.spec import NEED_WHOLE_PARAMETERS, RunSpec
from trainmaster.wire import WorkloadInfo

ASSUMED_FLOPS = 2e10
ASSUMED_BW = 1e9
ASSUMED_LAT_S = 2e-4
ASSUMED_KEPT = 12.0
"""Bytes that a layer keeps for its backward, per byte that it gives."""

SUM_BYTES: Mapping[str, float] = {"float64": 8.0, "float32": 4.0}
"""What the sum of a parameter's gradients takes, by `train.gradient_sums`."""

WEIGHT_BYTES = 4.0
STATE_BYTES = {"adamw": 8.0, "sgd": 4.0, "adafactor": 1.0}
"""What an optimizer keeps per parameter."""

SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b")
"""What is tried where a spec leaves the schedule open. Those that split backwards are not: what the
halves take, and how much longer both are than one, is not measured.
"""

FEW_SIZES = 3
"""Where fewer micro-batches divide the batch, others are tried as well."""

UNKNOWN_BYTES = 1e18
BUCKET_BYTES = float(25 * MIB)
MAX_SLOTS = 4096
MAX_MICRO_BATCHES = 100_000


def fleet_scenario(machines: Sequence[Machine], spec: RunSpec, workload: WorkloadInfo) -> Scenario:
    """Return the scenario of training `spec` on these machines, one node per slot.

    Raises:
        SpecError: there is no machine, or the workload does not tell what planning needs.
    """
    machines = of_one_kind(settled(machines), spec, workload)
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
    num_layers = layers.count
    is_timed = all(len(each.timed) == num_layers for each in machines)
    figures = [
        _figures(machine, is_measured=not unmeasured, is_timed=is_timed) for machine in slots
    ]
    kept = next((each.kept_bytes for each in machines if len(each.kept_bytes) == num_layers), ())
    if kept:
        layers, told = replace(layers, act=np.array(kept)), []
    if unmeasured and not is_timed:
        told.append(
            f"no calibration of {_named(unmeasured)}: a device is taken for {ASSUMED_FLOPS:.0e} "
            "FLOP/s times its emulated speed, so compare plans by it, and trust no seconds"
        )
    elif not is_timed and any(machine.layer_time_s is None for machine in machines):
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
        sizes = _sizes(batch, least)
    sum_bytes = SUM_BYTES[spec.train.gradient_sums]
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
        schedules=SCHEDULES if ask is None else (ask.schedule,),
        zeros=_zeros(spec, workload, machines),
        recomputes=("none", "full"),
        offloads=(False, True) if all(each.device == "cuda" for each in machines) else (False,),
        tensors=_tensors(spec, workload, machines) if ask is None else (ask.tensor,),
        hosts=tuple(machine.name for machine in slots),
        split=tuple(_split(layer) for layer in workload.layers),
        states=of_runtime(WEIGHT_BYTES, sum_bytes, STATE_BYTES[spec.train.optimizer.name]),
        weight_bytes=WEIGHT_BYTES,
        buckets=(BUCKET_BYTES,),
        overlap=True,
        grad_bytes=sum_bytes,
        runtime=True,
        warnings=tuple(told),
    )
    return with_nodes(scenario, names, figures, bw, lat)


def of_one_kind(
    machines: Sequence[Machine], spec: RunSpec, workload: WorkloadInfo
) -> Sequence[Machine]:
    """Return the machines that replicas may be on together: where the optimizer must see whole
    parameters, those of the kind of device that has most slots, for replicas on different kinds
    divide their update.
    """
    kinds = {each.device: 0 for each in machines}
    if len(kinds) < 2 or not _needs_whole_parameters(spec, workload):
        return machines
    for each in machines:
        kinds[each.device] += each.slots
    chosen = max(kinds, key=lambda kind: (kinds[kind], kind))
    return [each for each in machines if each.device == chosen]


def _needs_whole_parameters(spec: RunSpec, workload: WorkloadInfo) -> bool:
    return workload.brings_optimizer or spec.train.optimizer.name in NEED_WHOLE_PARAMETERS


def _zeros(spec: RunSpec, workload: WorkloadInfo, machines: Sequence[Machine]) -> tuple[int, ...]:
    if _needs_whole_parameters(spec, workload):
        return (0,)
    # With 1, memory is the same as with 2, and sums travel longer. Replicas on different kinds of
    # devices divide their update as with 1, whatever is asked for.
    return (0, 2, 3) if len({each.device for each in machines}) == 1 else (1,)


def _tensors(spec: RunSpec, workload: WorkloadInfo, machines: Sequence[Machine]) -> tuple[int, ...]:
    """Return how many slots of a machine may share each layer."""
    units = 0 if _needs_whole_parameters(spec, workload) else workload.tensor_units or 0
    most = max(machine.slots for machine in machines)
    return (1, *(each for each in TENSORS if units and units % each == 0 and each <= most))


TENSORS = (2, 4, 8)


def _split(layer: Mapping[str, Any]) -> float:
    """Return the share of a layer's parameters that the workload divides."""
    return float(layer.get("split_parameters", 0)) / max(1.0, float(layer["parameters"]))


def _sizes(batch: int, least: int) -> list[int]:
    """Return micro-batches to try: the seed's band is at least four of them in a step, where the
    batch allows. The last one may be smaller, but losses are then not the same bit for bit in
    every layout, so this is for batches that little divides.
    """
    most = max(least, batch // 4)
    sizes = [size for size in divisors(batch) if least <= size <= most]
    if len(sizes) < FEW_SIZES:
        powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        sizes = sorted({*sizes, *(size for size in powers if size >= least)})
    return sizes or [least]


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
    arrays = [np.array(column) for column in columns]
    return Layers(arrays[0], arrays[1], arrays[2], arrays[3]), told


def _named(names: Sequence[str]) -> str:
    first = ", ".join(names[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"


def _figures(machine: Machine, *, is_measured: bool, is_timed: bool) -> NodeKind:
    flops, t0 = ASSUMED_FLOPS * (machine.speed or 1.0), 0.0
    if machine.layer_time_s is not None:
        # Fixed seconds per layer: what the layer computes does not matter.
        flops, t0 = 1e24, machine.layer_time_s
    elif is_measured and machine.flops:
        flops = machine.flops
    return NodeKind(
        "node",
        flops,
        float(machine.memory_bytes or UNKNOWN_BYTES),
        t0,
        timed=machine.timed if is_timed and machine.layer_time_s is None else (),
        memory_bw=machine.memory_bytes_per_s or math.inf,
        host_link_bw=machine.host_link_bytes_per_s or math.inf,
        mtbf_s=machine.mtbf_s or math.inf,
    )


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
            places = [s.names[node].split("+") for node in nodes]
            names = tuple(slot.partition("/")[0] for place in places for slot in place)
            pipelines.append(
                Pipeline(layers=pipe.layers, micro_batches=pipe.micro_batches, nodes=names)
            )
            memory += [math.ceil(need) for need in needs]
    plan = Plan(
        micro_batch=setting.micro_batch,
        schedule=setting.schedule,
        virtual=setting.virtual,
        zero=_ZERO[setting.zero],
        offload=_offload(setting),
        recompute=setting.recompute,
        tensor=setting.tensor,
        bucket_bytes=round(setting.bucket or BUCKET_BYTES),
        pipelines=tuple(pipelines),
        predicted=Prediction(step_time_s=found.verdict.step_s, memory_bytes=memory),
    )
    problems = [
        *plan_problems(plan, num_layers=workload.num_layers, global_batch=spec.train.global_batch),
        *workload_problems(
            plan,
            tensor_units=workload.tensor_units,
            brings_optimizer=workload.brings_optimizer,
        ),
    ]
    assert not problems, f"the planner gave what the runtime refuses: {problems}"
    return plan


_ZERO: tuple[Zero, ...] = (0, 1, 2, 3)


def _offload(setting: Setting) -> Offload:
    if not setting.offload:
        return "none"
    return "parameters" if setting.zero == 3 else "optimizer"


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
