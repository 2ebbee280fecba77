"""How a plan follows from what a spec asks, and why it cannot: with the numbers, and a proposal."""

from __future__ import annotations

from trainmaster import cells
from trainmaster.cells import Cell
from trainmaster.errors import Problem, SpecError
from trainmaster.plan import MIB, ParallelAsk, Pipeline, Plan, cell_of, even_split
from trainmaster.schedules import KNOWN

DEFAULT_VIRTUAL = 2
"""Stages per rank of a schedule that takes any number of them."""

MAX_RANKS = 1 << 16
"""Of one plan: several seconds' work to lay out, and more than any fleet here has slots."""


def resolve(ask: ParallelAsk, *, num_layers: int, global_batch: int) -> Plan:
    """Return the plan that `ask` describes for a model of `num_layers` and steps of `global_batch`
    samples.

    Raises:
        SpecError: what does not fit, with the numbers and a proposal; all problems at once.
    """
    problems = [*_unproven(ask), *_unfit(ask, num_layers, global_batch)]
    if problems:
        raise SpecError(problems)
    micro_batch = ask.micro_batch or _default_micro_batch(ask, global_batch)
    pipelines = tuple(
        Pipeline(layers=layers, micro_batches=share, nodes=nodes)
        for layers, share, nodes in _pipelines(ask, num_layers, -(-global_batch // micro_batch))
    )
    plan = Plan(
        micro_batch=micro_batch,
        schedule=ask.schedule,
        virtual=virtual_of(ask),
        zero=ask.zero,
        offload=ask.offload,
        recompute=ask.recompute,
        bucket_bytes=max(1, round(ask.bucket_mb * MIB)),
        sync_every=ask.sync_every,
        tensor=ask.tensor,
        pipelines=pipelines,
    )
    problems = plan_problems(plan, num_layers=num_layers, global_batch=global_batch)
    if problems:
        raise SpecError(problems)
    return plan


def plan_problems(plan: Plan, *, num_layers: int, global_batch: int) -> list[Problem]:
    """Return why `plan` cannot run this model with this batch; empty when it can."""
    problems = []
    needed = -(-global_batch // plan.micro_batch)
    if plan.micro_batches != needed:
        problems.append(
            Problem(
                "parallel.shares" if len(plan.pipelines) > 1 else "parallel.micro_batch",
                f"{plan.micro_batches} micro-batches of {plan.micro_batch} samples make "
                f"{plan.micro_batches * plan.micro_batch}, but train.global_batch is "
                f"{global_batch}: it takes {needed}",
            )
        )
    shares = {pipeline.micro_batches for pipeline in plan.pipelines}
    if plan.zero == 3 and len(shares) > 1:
        problems.append(
            Problem(
                "parallel.shares",
                f"with zero 3 all replicas gather each layer together, so they must take as many "
                f"micro-batches: {plan.shares} differ; use zero 2",
            )
        )
    for replica, pipeline in enumerate(plan.pipelines):
        problems.extend(_pipeline_problems(plan, replica, pipeline, num_layers))
    problems.extend(_refused(cell_of(plan)))
    return problems


def workload_problems(
    plan: Plan, *, tensor_units: int | None, brings_optimizer: bool
) -> list[Problem]:
    """Return why `plan` cannot run a workload of this kind.

    Args:
        tensor_units: what the ranks of a place must divide; None where its tensors cannot be
            spread.
        brings_optimizer: whether it has its own, which must see whole parameters.
    """
    problems = []
    if plan.tensor > 1 and tensor_units is None:
        problems.append(
            Problem(
                "parallel.tensor",
                f"{plan.tensor} needs a workload that has tensor_parallel(layer); use 1",
            )
        )
    elif plan.tensor > 1 and tensor_units is not None and tensor_units % plan.tensor:
        fitting = max(part for part in range(1, plan.tensor) if tensor_units % part == 0)
        problems.append(
            Problem(
                "parallel.tensor",
                f"{plan.tensor} ranks cannot share {tensor_units} units evenly; {fitting} would "
                "fit",
            )
        )
    if brings_optimizer and plan.tensor > 1:
        problems.append(Problem("parallel.tensor", _OWN_OPTIMIZER.format(1)))
    if brings_optimizer and plan.zero > 0 and plan.replicas > 1:
        problems.append(Problem("parallel.zero", _OWN_OPTIMIZER.format(0)))
    return problems


def short_dataset(num_samples: int, global_batch: int) -> Problem | None:
    """Return why so few samples cannot fill a batch; None when they can. A batch that held a sample
    twice would weigh it twice.
    """
    if num_samples >= global_batch:
        return None
    return Problem(
        "data.source",
        f"the workload's dataset holds {num_samples} samples, fewer than one batch of "
        f"{global_batch}: use more data, or a train.global_batch of at most {num_samples}"
        if num_samples
        else "the workload's dataset holds no samples",
    )


_OWN_OPTIMIZER = (
    "the workload brings its own optimizer, which would see only parts of parameters: use {}, or "
    "the spec's optimizer"
)


def _pipeline_problems(
    plan: Plan, replica: int, pipeline: Pipeline, num_layers: int
) -> list[Problem]:
    where, problems = f"parallel.pipelines[{replica}]", []
    if sum(pipeline.layers) != num_layers:
        problems.append(
            Problem(
                f"{where}.layers",
                f"stages hold {sum(pipeline.layers)} layers, but the model has {num_layers}",
            )
        )
    if len(pipeline.layers) % plan.virtual:
        problems.append(
            Problem(
                f"{where}.layers",
                f"{len(pipeline.layers)} stages cannot be dealt out {plan.virtual} to a rank "
                f"(virtual {plan.virtual})",
            )
        )
    elif plan.schedule in KNOWN:
        refusal = KNOWN[plan.schedule].refusal(
            ranks=plan.depth_of(pipeline),
            virtual=plan.virtual,
            micro_batches=pipeline.micro_batches,
        )
        if refusal is not None:
            advice = "use a smaller micro_batch, fewer stages, or gpipe"
            problems.append(Problem(where, f"{refusal} in replica {replica}: {advice}"))
    return problems


def virtual_of(ask: ParallelAsk) -> int:
    """Return the stages per rank: as asked, else what the schedule needs, else the least it can
    make use of.
    """
    if ask.virtual is not None or ask.schedule not in KNOWN:
        return ask.virtual or 1
    needed = KNOWN[ask.schedule].virtual
    return DEFAULT_VIRTUAL if needed is None else needed


def _refused(cell: Cell) -> list[Problem]:
    return [Problem(f"parallel.{each.key}", each.because) for each in cells.refusals(cell)]


def _unproven(ask: ParallelAsk) -> list[Problem]:
    """Refuse by name each cell that no test compares with a single process."""
    cuts = {tuple(each.layers) for each in ask.pipelines or ()}
    cell = Cell(ask.schedule, ask.zero, ask.tensor > 1, len(cuts) > 1, ask.offload, ask.recompute)
    return _refused(cell)


def _unfit(ask: ParallelAsk, num_layers: int, global_batch: int) -> list[Problem]:
    num_ranks = ask.replicas * ask.stages * ask.tensor
    if num_ranks > MAX_RANKS:
        return [
            Problem(
                "parallel",
                f"replicas {ask.replicas}, stages {ask.stages} and tensor {ask.tensor} make "
                f"{num_ranks} ranks; at most {MAX_RANKS} can be planned",
            )
        ]
    problems = []
    num_stages = ask.stages * virtual_of(ask)
    if ask.pipelines is None and num_stages > num_layers:
        per_rank = f" ({virtual_of(ask)} to a rank)" if virtual_of(ask) > 1 else ""
        problems.append(
            Problem(
                "parallel.stages",
                f"{num_stages} stages for {num_layers} layers: at most {num_layers} stages "
                f"are possible{per_rank}",
            )
        )
    if ask.micro_batch is not None and ask.micro_batch > global_batch:
        problems.append(
            Problem(
                "parallel.micro_batch",
                f"{ask.micro_batch} is more than train.global_batch {global_batch}; at most that "
                "would fit",
            )
        )
    elif ask.pipelines is None and ask.shares is None:
        micro_batches = -(-global_batch // (ask.micro_batch or 1))
        if micro_batches % ask.replicas:
            problems.append(
                Problem(
                    "parallel.replicas",
                    f"{micro_batches} micro-batches cannot be shared evenly by {ask.replicas} "
                    f"replicas: use {_nearest_divisor(micro_batches, ask.replicas)} replicas, "
                    f"another micro_batch, or explicit shares",
                )
            )
    if ask.shares is not None and len(ask.shares) != ask.replicas:
        problems.append(
            Problem("parallel.shares", f"{len(ask.shares)} shares for {ask.replicas} replicas")
        )
    if ask.pipelines is not None and ask.micro_batch is None:
        problems.append(Problem("parallel.micro_batch", "is needed beside explicit pipelines"))
    if ask.layers is not None:
        problems.extend(_range_problems(ask, num_layers))
    return problems


def _range_problems(ask: ParallelAsk, num_layers: int) -> list[Problem]:
    assert ask.layers is not None
    if ask.pipelines is not None:
        return [Problem("parallel.layers", "give either layers or pipelines, not both")]
    num_stages = ask.stages * virtual_of(ask)
    if len(ask.layers) != num_stages:
        return [
            Problem("parallel.layers", f"{len(ask.layers)} layer ranges for {num_stages} stages")
        ]
    expected = 0
    for stage, bounds in enumerate(ask.layers):
        if len(bounds) != 2 or bounds[0] != expected or bounds[1] <= bounds[0]:
            return [
                Problem(
                    f"parallel.layers[{stage}]",
                    f"{bounds} should be [{expected}, END] with END above {expected}: half-open, "
                    f"in order, without gaps",
                )
            ]
        expected = bounds[1]
    if expected != num_layers:
        return [
            Problem(
                "parallel.layers",
                f"ranges end at {expected}, but the model has {num_layers} layers",
            )
        ]
    return []


def _pipelines(
    ask: ParallelAsk, num_layers: int, micro_batches: int
) -> list[tuple[tuple[int, ...], int, tuple[str, ...]]]:
    if ask.pipelines is not None:
        return [
            (tuple(each.layers), each.micro_batches, tuple(each.nodes)) for each in ask.pipelines
        ]
    if ask.layers is not None:
        layers = tuple(last - first for first, last in ask.layers)
    else:
        layers = even_split(num_layers, ask.stages * virtual_of(ask))
    shares = ask.shares or [micro_batches // ask.replicas] * ask.replicas
    return [(layers, share, ()) for share in shares]


def _default_micro_batch(ask: ParallelAsk, global_batch: int) -> int:
    """Choose the largest micro-batch that leaves each replica four micro-batches per stage, or as
    near as divisors and the schedule allow.
    """
    if ask.shares is not None:
        return max(1, global_batch // sum(ask.shares))
    virtual = virtual_of(ask)
    per_replica = global_batch // ask.replicas
    wanted = max(1, per_replica // (4 * ask.stages * virtual))
    sizes = [size for size in range(wanted, 0, -1) if per_replica % size == 0]
    schedule = KNOWN[ask.schedule]
    for size in sizes:
        micro_batches = per_replica // size
        if not schedule.refusal(ranks=ask.stages, virtual=virtual, micro_batches=micro_batches):
            return size
    return sizes[0]


def _nearest_divisor(total: int, wanted: int) -> int:
    divisors = (size for size in range(1, total + 1) if total % size == 0)
    return min(divisors, key=lambda size: (abs(size - wanted), size))
