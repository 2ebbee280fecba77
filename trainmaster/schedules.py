"""Pipeline schedules as data: which are known, what each demands, and its order of work.

An order says for each rank of a pipeline which action follows which; a runtime or a simulation adds
the times. The built-in ones are those that `torch.distributed.pipelining` generates (torch 2.13),
so that what is planned is what runs.

Stages are numbered along the model. With `virtual` stages per rank there are `ranks * virtual` of
them, dealt out in a loop (rank r has r, r + ranks, ...) or in a V (the first rank has the first and
the last). A schedule of a third party is one more `Schedule`, added with `add`
(`trainmaster.testing.schedule_contract` says what it must keep to).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from trainmaster import sequences
from trainmaster.errors import ConflictError, UserError
from trainmaster.sequences import Action, Generator, Kind, Sequence

__all__ = ["KNOWN", "Action", "Kind", "Order", "Schedule", "Sequence"]

Order = tuple[Sequence, ...]
"""The sequence of actions of each rank of a pipeline."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline's order of work, as data.

    Attributes:
        name: what a spec says.
        generate: (ranks, virtual, micro_batches) -> the sequence of each rank; asked only for what
            `refusal` does not refuse.
        torch_class: name of the class in `torch.distributed.pipelining` with the same order; empty
            if there is none.
        placement: how stages are dealt out to ranks.
        virtual: stages per rank: exactly so many, or None where any number will do.
        rounds: whether micro-batches must divide into the rounds of an interleaved schedule.
        micro_batches_per_stage: the least number of micro-batches, per stage of the pipeline.
        splits_backward: whether input's and weights' gradients are actions of their own.
    """

    name: str
    generate: Generator
    torch_class: str = ""
    placement: Literal["loop", "v"] = "loop"
    virtual: int | None = 1
    rounds: bool = False
    micro_batches_per_stage: int = 0
    splits_backward: bool = False

    @property
    def needs_micro_batch_per_stage(self) -> bool:
        """Whether fewer micro-batches than stages are impossible."""
        return self.micro_batches_per_stage > 0

    def bubble_ratio(self, stages: int, micro_batches: int) -> float:
        """Return the idle share of an even pipeline: (p - 1) / (m + p - 1).

        Source: GPipe (Huang et al., 2019), section 2.3; the same for 1F1B (Narayanan et al., 2021,
            section 2.2.1).
        """
        return (stages - 1) / (micro_batches + stages - 1)

    def rank_of(self, ranks: int, virtual: int, stage: int) -> int:
        """Return the rank within its pipeline that holds `stage`."""
        assert 0 <= stage < ranks * virtual, f"stage {stage} of {ranks * virtual}"
        lap, position = divmod(stage, ranks)
        return ranks - 1 - position if self.placement == "v" and lap % 2 else position

    def stages_of(self, ranks: int, virtual: int, rank: int) -> tuple[int, ...]:
        """Return the stages that `rank` holds, first to last along the model."""
        return tuple(
            stage for stage in range(ranks * virtual) if self.rank_of(ranks, virtual, stage) == rank
        )

    def refusal(self, *, ranks: int, virtual: int, micro_batches: int) -> str | None:
        """Return what is wrong with these numbers and what would do, or None."""
        for what, number in (("ranks", ranks), ("virtual", virtual), ("micro", micro_batches)):
            if number < 1:
                word = "micro-batches" if what == "micro" else what
                return f"{self.name} needs at least 1 for {word}, not {number}"
        if self.virtual is not None and virtual != self.virtual:
            plural = "stage" if self.virtual == 1 else "stages"
            return (
                f"{self.name} has exactly {self.virtual} {plural} per rank: use virtual "
                f"{self.virtual}, not {virtual}"
            )
        least = self.micro_batches_per_stage * ranks * virtual
        if micro_batches < least:
            return (
                f"{self.name} needs at least as many micro-batches as stages: {micro_batches} "
                f"micro-batches for {ranks * virtual} stages"
            )
        if self.rounds:
            number = sequences.rounds(ranks, micro_batches)
            if micro_batches % number:
                below, above = micro_batches - micro_batches % ranks, -(-micro_batches // ranks)
                return (
                    f"{self.name} takes micro-batches in {number} rounds of equal size on {ranks} "
                    f"ranks, which {micro_batches} micro-batches do not divide into: use {below} "
                    f"or {above * ranks}"
                )
        return None


KNOWN: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("gpipe", sequences.gpipe, "GPipe"),
        Schedule("1f1b", sequences.one_f_one_b, "1F1B", micro_batches_per_stage=1),
        Schedule(
            "interleaved_1f1b",
            sequences.interleaved_1f1b,
            "Interleaved1F1B",
            virtual=None,
            rounds=True,
        ),
        Schedule("looped_bfs", sequences.looped_bfs, "LoopedBFS", virtual=None),
        Schedule(
            "interleaved_zero_bubble",
            sequences.interleaved_zero_bubble,
            "InterleavedZeroBubble",
            virtual=None,
            rounds=True,
            splits_backward=True,
        ),
        Schedule(
            "zbv_zero_bubble",
            sequences.zbv_zero_bubble,
            "ZBVZeroBubble",
            placement="v",
            virtual=2,
            splits_backward=True,
        ),
        Schedule(
            "dualpipev",
            sequences.dualpipev,
            "DualPipeV",
            placement="v",
            virtual=2,
            micro_batches_per_stage=1,
            splits_backward=True,
        ),
    )
}
"""All schedules, those of third parties once they are added. What they go together with is in
`trainmaster.cells`.
"""


def add(schedule: Schedule) -> None:
    """Make the schedule of a third party known, once, as a process starts.

    Raises:
        ConflictError: another one has its name.
    """
    if KNOWN.setdefault(schedule.name, schedule) is not schedule:
        raise ConflictError(f"there is a pipeline schedule named {schedule.name!r} already")


def named(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises:
        UserError: there is none.
    """
    if name not in KNOWN:
        raise UserError(
            f"there is no pipeline schedule {name!r}; known are {', '.join(KNOWN)}",
            code="unknown_schedule",
        )
    return KNOWN[name]


def order_of(name: str, ranks: int, virtual: int, micro_batches: int) -> Order:
    """Return for each rank of a pipeline its actions, in the order in which it does them.

    Raises:
        UserError: there is no such schedule, or it cannot be made for these numbers; the message
            says what would do.
    """
    schedule = named(name)
    refusal = schedule.refusal(ranks=ranks, virtual=virtual, micro_batches=micro_batches)
    if refusal is not None:
        raise UserError(refusal, code="bad_schedule")
    return _generated(schedule, ranks, virtual, micro_batches)


@lru_cache(maxsize=256)
def _generated(schedule: Schedule, ranks: int, virtual: int, micro_batches: int) -> Order:
    return schedule.generate(ranks, virtual, micro_batches)


def stage_rank(name: str, ranks: int, virtual: int, stage: int) -> int:
    """Return the rank within its pipeline that holds `stage`.

    Raises:
        UserError: there is no such schedule.
    """
    return named(name).rank_of(ranks, virtual, stage)


def stages_of(name: str, ranks: int, virtual: int, rank: int) -> tuple[int, ...]:
    """Return the stages that `rank` of a pipeline holds, first to last along the model.

    Raises:
        UserError: there is no such schedule.
    """
    return named(name).stages_of(ranks, virtual, rank)


def fused(sequence: Sequence) -> Sequence:
    """Return `sequence` with each input gradient that its weights' gradient follows at once made
    one whole backward, as torch runs it.
    """
    found: list[Action] = []
    for action in sequence:
        if (
            action.kind is Kind.BACKWARD_WEIGHT
            and found
            and found[-1] == action._replace(kind=Kind.BACKWARD_INPUT)
        ):
            found[-1] = action._replace(kind=Kind.BACKWARD)
        else:
            found.append(action)
    return tuple(found)


def problem_of(order: Order, schedule: Schedule, virtual: int, micro_batches: int) -> str | None:
    """Return what is wrong with an order of `schedule`, or None: an action on a rank that does not
    hold its stage, one that is missing or stands twice, or one that waits for ever.
    """
    ranks = len(order)
    for rank, sequence in enumerate(order):
        problem = _sequence_problem(
            sequence, schedule.stages_of(ranks, virtual, rank), micro_batches, rank
        )
        if problem is not None:
            return problem
    return _deadlock(order, ranks * virtual)


def _sequence_problem(
    sequence: Sequence, stages: tuple[int, ...], micro_batches: int, rank: int
) -> str | None:
    if len(set(sequence)) != len(sequence):
        twice = next(each for each in sequence if sequence.count(each) > 1)
        return f"{twice} stands twice on rank {rank}"
    place = {action: position for position, action in enumerate(sequence)}
    expected = 0
    for stage in stages:
        for micro_batch in range(micro_batches):
            forward, backward, of_input, of_weights = (
                Action(stage, kind, micro_batch)
                for kind in (
                    Kind.FORWARD,
                    Kind.BACKWARD,
                    Kind.BACKWARD_INPUT,
                    Kind.BACKWARD_WEIGHT,
                )
            )
            needed = [forward, backward]
            if backward not in place:
                needed = [forward, of_input, of_weights]
            for earlier, later in pairwise(needed):
                if earlier not in place or later not in place:
                    lacking = earlier if earlier not in place else later
                    return f"{lacking} is missing on rank {rank}"
                if place[earlier] > place[later]:
                    return f"{later} stands before {earlier} on rank {rank}"
            expected += len(needed)
    if len(sequence) != expected:
        return f"rank {rank} has {len(sequence)} actions where {expected} belong to its stages"
    return None


def _deadlock(order: Order, num_stages: int) -> str | None:
    done: set[tuple[int, bool, int]] = set()
    position = [0] * len(order)
    moved = True
    while moved:
        moved = False
        for rank, sequence in enumerate(order):
            while position[rank] < len(sequence):
                action = sequence[position[rank]]
                if not _inputs(action, num_stages) <= done:
                    break
                if action.kind is not Kind.BACKWARD_WEIGHT:
                    is_forward = action.kind is Kind.FORWARD
                    done.add((action.stage, is_forward, action.micro_batch))
                position[rank] += 1
                moved = True
    for rank, sequence in enumerate(order):
        if position[rank] < len(sequence):
            return f"rank {rank} waits for ever before {sequence[position[rank]]}"
    return None


def _inputs(action: Action, num_stages: int) -> set[tuple[int, bool, int]]:
    """Return what must be done on other stages first, as (stage, is forward, micro-batch)."""
    if action.kind is Kind.FORWARD and action.stage > 0:
        return {(action.stage - 1, True, action.micro_batch)}
    if action.kind in {Kind.BACKWARD, Kind.BACKWARD_INPUT} and action.stage < num_stages - 1:
        return {(action.stage + 1, False, action.micro_batch)}
    return set()
