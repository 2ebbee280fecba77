"""What to change when memory runs out, with the numbers. Pure."""

from __future__ import annotations

from dataclasses import replace

from control.snapshot import Attempt, RunSnapshot
from trainmaster.cells import refusals
from trainmaster.layout import roles
from trainmaster.plan import MIB, cell_of

OPTIMIZER_BYTES = 8
"""Of a parameter: AdamW keeps two averages in float32."""


def smaller(snapshot: RunSnapshot, attempt: Attempt, rank: int) -> str:
    """Return what would leave a rank more memory, as sentences that name keys of the spec."""
    plan, workload = attempt.plan, snapshot.run.workload
    ways = []
    lesser = [size for size in range(1, plan.micro_batch) if plan.micro_batch % size == 0]
    if lesser:
        share = lesser[-1] / plan.micro_batch
        ways.append(
            f"parallel.micro_batch {lesser[-1]} instead of {plan.micro_batch} (what layers keep "
            f"for their backward becomes {share:.0%})"
        )
    held = roles(plan)[rank].layers
    bytes_held = 0
    if workload is not None and len(workload.layers) == workload.num_layers:
        bytes_held = OPTIMIZER_BYTES * sum(
            int(workload.layers[layer].get("parameters") or 0) for layer in held
        )
    cell = cell_of(plan)
    size = f"{bytes_held / MIB:.1f} MiB of optimizer state"
    if plan.replicas > 1 and plan.zero == 0 and not refusals(replace(cell, zero=1)):
        left = bytes_held / plan.replicas / MIB
        ways.append(
            f"parallel.zero 1 ({size} are divided by {plan.replicas} replicas: {left:.1f} MiB left)"
        )
    if plan.offload == "none" and not refusals(replace(cell, offload="optimizer")):
        ways.append(f"parallel.offload optimizer ({size} go to the machine's memory)")
    num_stages = plan.stages
    if workload is not None and num_stages < workload.num_layers:
        ways.append(
            f"parallel.stages {num_stages + 1} instead of {num_stages} (this rank holds "
            f"{len(held)} layers)"
        )
    if not ways:
        return "Nothing smaller is known: use devices with more memory."
    return f"Amend the spec with one of these: {'; '.join(ways)}."
