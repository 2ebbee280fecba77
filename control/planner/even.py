"""A plan for `parallel: auto` on slots that are taken to be alike: data parallel, as wide as the
batch allows.

Equal replicas of the whole model have no pipeline bubble and need no cut, so they are the best
choice for equal devices as long as the model fits on each. Memory and link speeds are not known
here; who needs stages says so in the spec.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.plan import ParallelAsk, Plan, resolve
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan, and why this one, as a sentence."""

    plan: Plan
    because: str


def choose(spec: RunSpec, workload: WorkloadInfo, *, num_slots: int) -> Choice:
    """Return the plan for `spec` on at most `num_slots` equal slots; as asked where the spec is
    explicit.

    Raises:
        SpecError: what the spec asks does not fit the workload; never for `auto`.
    """
    assert num_slots >= 1, f"a plan needs a slot, not {num_slots}"
    global_batch = spec.train.global_batch
    if spec.parallel != "auto":
        plan = resolve(spec.parallel, num_layers=workload.num_layers, global_batch=global_batch)
        return Choice(plan, "The plan is as the spec asks.")
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
