"""Pipeline schedules: which are known, and what each demands of a plan.

The order of work itself is torch's; this is what validation and planning need to know of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline's order of work, as data.

    Attributes:
        name: what a spec says.
        torch_class: name of the class in `torch.distributed.pipelining` that runs it.
        needs_micro_batch_per_stage: whether fewer micro-batches than stages are impossible.
    """

    name: str
    torch_class: str
    needs_micro_batch_per_stage: bool

    def bubble_ratio(self, stages: int, micro_batches: int) -> float:
        """Return the idle share of an even pipeline: (p - 1) / (m + p - 1).

        Source: GPipe (Huang et al., 2019), section 2.3; the same for 1F1B (Narayanan et al., 2021,
            section 2.2.1).
        """
        return (stages - 1) / (micro_batches + stages - 1)


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("gpipe", "GPipe", needs_micro_batch_per_stage=False),
        Schedule("1f1b", "1F1B", needs_micro_batch_per_stage=True),
    )
}
