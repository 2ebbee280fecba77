"""From a launch to the parts that train: what fixes the steps, and what moves in them."""

from __future__ import annotations

from trainmaster.batches import normalise
from trainmaster.layout import RankRole, roles, sample_range, stage_ranks
from trainmaster.plugins import load_workload
from trainmaster.wire import Assignment
from worker import groups
from worker.data.agreement import agree
from worker.data.batches import BatchReader
from worker.emulation import Pace, message_s
from worker.faults import Faults
from worker.launch import Launch, Link
from worker.optimizer import Optimizer
from worker.orders import InboxFile, OrderDesk
from worker.pipeline import Pipeline
from worker.reduce import GradientBuckets
from worker.spoolfile import SpoolFile
from worker.step import Course, Machinery
from worker.timeline import Meter, measure_messages
from worker.training_state import trainable
from worker.workload import build_stage


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
    )


def assemble(launch: Launch, spool: SpoolFile, course: Course) -> Machinery:
    """Meet the other ranks and build what this one needs."""
    assignment, spec, plan = launch.assignment, launch.assignment.spec, launch.assignment.plan
    assert assignment.store is not None, "ranks start once the store's address is known"
    role = roles(plan)[launch.rank]
    workload = load_workload(spec.workload, params=spec.params, data=spec.data.source)
    reads_data = role.is_first_stage or role.is_last_stage
    reader = BatchReader(
        workload.dataset() if reads_data else None,
        seed=spec.train.seed,
        batch_size=spec.train.global_batch,
        positions=sample_range(plan, role.replica),
        wants_inputs=role.is_first_stage,
        wants_targets=role.is_last_stage,
    )
    layers = build_stage(
        workload.layers(),
        first_layer=role.first_layer,
        end_layer=role.end_layer,
        seed=spec.train.seed,
    )
    parameters = list(trainable(layers).items())
    joined = groups.join(
        store=assignment.store,
        prefix=f"{assignment.run}/{assignment.generation}",
        plan=plan,
        role=role,
    )
    pace = Pace(launch.emulation, num_layers=role.end_layer - role.first_layer)
    meter = Meter(pace)
    links = links_by_rank(launch)
    measure_messages(meter, lambda peer, num_bytes: message_s(links.get(peer), num_bytes))
    first = reader.read(course.batch(1)).inputs
    buckets = GradientBuckets(parameters, bucket_bytes=plan.bucket_bytes, group=joined.stage)
    inbox = InboxFile(launch.inbox)
    return Machinery(
        plan=plan,
        role=role,
        groups=joined,
        layers=layers,
        reader=reader,
        pipeline=Pipeline(
            layers,
            workload=workload,
            plan=plan,
            role=role,
            groups=joined,
            meter=meter,
            after_backward=buckets.gather,
            input_M=None if first is None else first[: plan.micro_batch],
        ),
        buckets=buckets,
        optimizer=Optimizer(parameters, spec.train.optimizer, workload),
        meter=meter,
        faults=Faults(inbox, spool, pace, rank=launch.rank, node=launch.node),
        spool=spool,
        data_sha256=agree(reader.sha256, joined.world),
        replica_links={
            rank: links[rank] for rank in stage_ranks(plan, role.stage) if rank in links
        },
        desk=OrderDesk(inbox, spool) if launch.rank == 0 else None,
    )


def links_by_rank(launch: Launch) -> dict[int, Link]:
    """Return the emulated links of this rank's node to the ranks at their other ends."""

    def link_to(role: RankRole) -> Link | None:
        return None if role.node is None else launch.emulation.links.get(role.node)

    found = {role.rank: link_to(role) for role in roles(launch.assignment.plan)}
    return {rank: link for rank, link in found.items() if link is not None}
