"""From a launch to the parts that train: what fixes the steps, and what moves in them."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.batches import normalise
from trainmaster.emulation import Link
from trainmaster.errors import Problem, SpecError
from trainmaster.layout import RankRole, first_micro_batch, place_ranks, roles, sample_range
from trainmaster.plugins import WithOptimizer, WithTensorParallel, Workload, load_workload
from trainmaster.resolution import workload_problems
from trainmaster.spec import NEED_WHOLE_PARAMETERS, OptimizerSpec
from trainmaster.wire import Assignment
from worker import groups
from worker.data.agreement import (
    agree,
    refuse_other_code,
    refuse_other_samples,
    refuse_other_weights,
)
from worker.data.batches import BatchReader
from worker.delays import Ring, slow_place
from worker.devices import ComputeDevice, cross, sum_dtype
from worker.emulation import Pace, SlowLink
from worker.faults import Faults, failure_in
from worker.gradients.bucket import Sharing
from worker.gradients.reduce import Gradients
from worker.launch import Launch
from worker.model.code_digest import code_sha256
from worker.model.draws import Draws
from worker.model.parameters import Piece, held
from worker.model.sharded import shard
from worker.model.tensor_parallel import spread
from worker.model.user_code import calling
from worker.model.workload import StageLayers, build_layers, layer_of
from worker.optimizer import Optimizer
from worker.orders import InboxFile, OrderDesk
from worker.pipeline.passes import Pipeline
from worker.pipeline.timeline import measure_messages
from worker.reporting.meter import Meter
from worker.reporting.spoolfile import SpoolFile
from worker.step import Course, Machinery
from worker.weights_digest import digest_of


def course_of(assignment: Assignment) -> Course:
    """Return what fixes the steps of an attempt: the spec's own skips and windows, and those that
    were added since.
    """
    train = assignment.spec.train
    own_windows = [
        (each.first_step, each.last_step, each.factor) for each in train.lr_factor_windows
    ]
    return Course(
        train=train,
        skip=normalise([*train.skip, *assignment.skip]),
        lr_windows=(*own_windows, *assignment.lr_windows),
        sync_every=assignment.plan.sync_every,
    )


def assemble(launch: Launch, spool: SpoolFile, course: Course) -> Machinery:
    """Meet the other ranks and build what this one needs."""
    assignment, spec, plan = launch.assignment, launch.assignment.spec, launch.assignment.plan
    assert assignment.store is not None, "ranks start once the store's address is known"
    role = roles(plan)[launch.rank]
    device = ComputeDevice.of(launch.device)
    workload = load_workload(spec.workload, params=spec.params, data=spec.data.source)
    reads_data = role.is_first_stage or role.is_last_stage
    with calling("dataset()"):
        dataset = workload.dataset() if reads_data else None
    positions = sample_range(plan, role.replica, spec.train.global_batch)
    reader = BatchReader(
        dataset,
        seed=spec.train.seed,
        batch_size=spec.train.global_batch,
        positions=positions,
        size=plan.pipelines[role.replica].micro_batches * plan.micro_batch,
        wants_inputs=role.is_first_stage,
        wants_targets=role.is_last_stage,
        device=device,
    )
    with calling("layers()"):
        builders = list(workload.layers())
    layers = build_layers(builders, role.layers, seed=spec.train.seed)
    joined = groups.join(
        store=assignment.store,
        prefix=f"{assignment.run}/{assignment.generation}",
        plan=plan,
        role=role,
        device=device,
        one_kind=spec.train.determinism == "layout",
    )
    problems = workload_problems(
        plan,
        tensor_units=workload.tensor_units if isinstance(workload, WithTensorParallel) else None,
        brings_optimizer=isinstance(workload, WithOptimizer),
    )
    if problems:
        raise SpecError(problems)
    refuse_other_code(code_sha256(spec.workload), joined.world)
    refuse_other_samples(reader.probe_sha256(), joined.world)
    if plan.replicas * plan.tensor > 1 and assignment.resume is None:
        refuse_other_weights(_built(layers, plan.num_layers), joined.world)
    device.take(layers)
    links = links_by_rank(launch)
    if joined.place is not None:
        spread(layers, workload, joined.place, device)
    if role.is_divided:
        on_host = plan.offload == "parameters"
        shard(layers, joined.segments, device, on_host=on_host, links=links)
    pace = Pace(launch.emulation, rank=launch.rank)
    meter = Meter(pace, spool.pulse)
    slow = {
        peer: SlowLink(link, seed=f"{launch.emulation.seed}/{launch.rank}/{peer}")
        for peer, link in links.items()
    }
    measure_messages(meter, slow)
    reads_late = may_read_late(assignment, workload, joined.kinds, device)
    first = reader.read(course.passes(course.batch(1))[0]).inputs
    gradients = Gradients(
        held(layers, tensor=role.tensor, is_divided=role.is_divided),
        role.stages,
        joined.segments,
        bucket_bytes=plan.bucket_bytes,
        sharing=Sharing(
            plan.zero,
            plan.replicas,
            role.replica,
            on_host=plan.offload == "optimizer",
            is_mixed=groups.replicas_cross(plan, joined.kinds),
            is_ordered=spec.train.determinism == "layout",
            reads_late=reads_late,
            sum_dtype=sum_dtype(device.torch_device, spec.train.gradient_sums),
        ),
        links=links,
        holds=pace.plays,
    )
    draws = Draws(spec.train.seed, first_micro_batch(plan, role.replica))
    inbox = InboxFile(launch.inbox)
    return Machinery(
        plan=plan,
        role=role,
        groups=joined,
        layers=layers,
        reader=reader,
        draws=draws,
        pipeline=Pipeline(
            layers,
            workload=workload,
            plan=plan,
            role=role,
            groups=joined,
            meter=meter,
            collector=gradients,
            precision=spec.train.precision,
            device=device,
            draws=draws,
            samples=positions[1] - positions[0],
            input_M=None if first is None else first[: plan.micro_batch],
            within=slow_place(Ring(place_ranks(plan, role.replica, role.stage), links)),
            reads_late=reads_late,
        ),
        gradients=gradients,
        optimizer=optimizer_of(gradients.pieces, spec.train.optimizer, workload),
        device=device,
        reads_late=reads_late,
        meter=meter,
        faults=Faults(
            inbox,
            spool,
            pace,
            rank=launch.rank,
            node=launch.node,
            failure=failure_in(launch.emulation.failure, assignment.generation),
        ),
        spool=spool,
        data_sha256=agree(reader.sha256, joined.world),
        desk=OrderDesk(inbox, spool) if launch.rank == 0 else None,
    )


def may_read_late(
    assignment: Assignment, workload: Workload, kinds: Sequence[str], device: ComputeDevice
) -> bool:
    """Return whether all ranks leave the status of a step on their devices and read it in the next
    one: where the host runs ahead of them, and the decision on an update needs nothing of it.
    """
    train, plan = assignment.spec.train, assignment.plan
    return (
        device.runs_ahead
        and not cross(kinds)
        and plan.offload == "none"
        and train.precision != "fp16"
        and train.determinism == "run"
        and train.optimizer.name == "adamw"
        and not isinstance(workload, WithOptimizer)
    )


def _built(layers: StageLayers, num_layers: int) -> list[str | None]:
    """Return a digest of each layer's weights; None of those that are not here."""
    here = {int(name): module for name, module in layers.layers.items()}
    return [
        digest_of(dict(here[layer].named_parameters())) if layer in here else None
        for layer in range(num_layers)
    ]


def optimizer_of(pieces: Sequence[Piece], spec: OptimizerSpec, workload: Workload) -> Optimizer:
    """Return the optimizer of this rank's pieces.

    Raises:
        SpecError: it is one that may not be given parts of parameters.
    """
    divided = [piece for piece in pieces if tuple(piece.updated.shape) != piece.shape]
    own = isinstance(workload, WithOptimizer)
    if divided and (own or spec.name in NEED_WHOLE_PARAMETERS):
        who = "the workload's optimizer" if own else spec.name
        message = (
            f"{who} would see only a part of {divided[0].name}: use zero 0, tensor 1 and replicas "
            "on devices of one kind, or adamw or sgd"
        )
        raise SpecError([Problem("train.optimizer.name", message)])
    # Built in the order of the layers, whatever the order of buckets.
    ordered = sorted(pieces, key=lambda piece: layer_of(piece.name))
    return Optimizer([(piece.name, piece.updated) for piece in ordered], spec, workload)


def links_by_rank(launch: Launch) -> dict[int, Link]:
    """Return the emulated links of this rank's node to the ranks at their other ends."""

    def link_to(role: RankRole) -> Link | None:
        return None if role.node is None else launch.emulation.links.get(role.node)

    found = {role.rank: link_to(role) for role in roles(launch.assignment.plan)}
    return {rank: link for rank, link in found.items() if link is not None}
