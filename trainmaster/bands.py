"""Bands in which pipelines are known to work well; who leaves one is told why it may cost, and is
never refused.

They are rules of thumb for one kind of machine, and each sentence says where it does not hold.
"""

from __future__ import annotations

from trainmaster.plan import Plan

PER_RANK = (32, 64)
LEAST_GLOBAL_BATCH = 512
MICRO_BATCH_SHARE = (1 / 8, 1 / 4)
STAGES = (4, 16)


def left(plan: Plan, *, global_batch: int) -> list[str]:
    """Return a sentence for each band that `plan` leaves."""
    per_step = global_batch * plan.sync_every
    per_rank = per_step / plan.world_size
    share = plan.micro_batch * plan.micro_batches / plan.replicas
    of_replica = plan.micro_batch / share
    found = []
    if not PER_RANK[0] <= per_rank <= PER_RANK[1]:
        side = "fewer" if per_rank < PER_RANK[0] else "more"
        found.append(
            f"{per_step} samples a step are {per_rank:.3g} for each of {plan.world_size} ranks, "
            f"{side} than {PER_RANK[0]} to {PER_RANK[1]}: with fewer, a device waits more than it "
            "computes; with more, it may run out of memory. Long samples need fewer, small models "
            "take more."
        )
    if per_step < LEAST_GLOBAL_BATCH:
        found.append(
            f"{per_step} samples a step are fewer than {LEAST_GLOBAL_BATCH}: the sum of gradients "
            "then costs a large share of a step, and gradients are noisy. A small model or small "
            "data may well need fewer."
        )
    if plan.stages > 1 and not MICRO_BATCH_SHARE[0] <= of_replica <= MICRO_BATCH_SHARE[1]:
        count = share / plan.micro_batch
        found.append(
            f"A replica takes {count:.3g} micro-batches a step, outside of 4 to 8: fewer leave "
            "stages idle while a pipeline fills, more are so small that a device is not busy. With "
            "more than 8 stages, more micro-batches than 8 are right."
        )
    if plan.stages > 1 and not STAGES[0] <= plan.stages <= STAGES[1]:
        found.append(
            f"{plan.stages} stages lie outside of {STAGES[0]} to {STAGES[1]}: a short pipeline "
            "holds little that one device could not, a long one waits for its slowest stage and "
            "its links. Unequal devices, or a model that just does not fit, are reasons for fewer."
        )
    return found
