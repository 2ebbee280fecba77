"""Which combinations of schedule, ZeRO level, tensor parallelism, ragged pipelines, offload and
recomputing the runtime carries out: one table for the refusals, the documentation and the tests.

A cell is proven when a test trains in it and compares losses, gradient norms and weights with a
single process (`make matrix` runs them all). Every other cell is refused by name, with the reason:
several of them run without an error elsewhere and give wrong gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from trainmaster.schedules import KNOWN

Zero = Literal[0, 1, 2, 3]
Offload = Literal["none", "optimizer", "parameters"]
Recompute = Literal["none", "selective", "full"]

ZEROS: Final[tuple[Zero, ...]] = (0, 1, 2, 3)
OFFLOADS: Final[tuple[Offload, ...]] = ("none", "optimizer", "parameters")
RECOMPUTES: Final[tuple[Recompute, ...]] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination. `tensor` is whether a stage is spread over several ranks, `ragged` whether
    replicas are cut in different places.
    """

    schedule: str
    zero: Zero = 0
    tensor: bool = False
    ragged: bool = False
    offload: Offload = "none"
    recompute: Recompute = "none"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a cell is not carried out: the key of a spec's `parallel` to change, and the reason."""

    key: str
    because: str


def refusals(cell: Cell) -> tuple[Refusal, ...]:
    """Return all reasons for which `cell` is refused; none when it is proven."""
    found = []
    if cell.schedule not in KNOWN:
        known = ", ".join(sorted(KNOWN))
        found.append(
            Refusal("schedule", f"{cell.schedule!r} is not known; this version runs {known}")
        )
    if cell.zero == 3:
        found.extend(_of_zero_3(cell))
    elif cell.offload == "parameters":
        found.append(
            Refusal("offload", "'parameters' needs zero 3; use 'optimizer' with zero 0 to 2")
        )
    if cell.recompute == "selective" and _splits_backward(cell):
        found.append(
            Refusal(
                "recompute",
                "'selective' keeps what it keeps for one backward, and the schedule makes two of "
                "it; use 'full'",
            )
        )
    return tuple(found)


def _splits_backward(cell: Cell) -> bool:
    return cell.schedule in KNOWN and KNOWN[cell.schedule].splits_backward


def _of_zero_3(cell: Cell) -> Iterator[Refusal]:
    """Yield what ZeRO 3 does not go with: torch's sharding of parameters learns from autograd that
    a backward has ended, and has all replicas compute each layer together.
    """
    if _splits_backward(cell):
        yield Refusal(
            "zero",
            "3 gives wrong gradients, without an error, where a schedule splits the backward; use "
            "2, or a schedule that does not",
        )
    if cell.ragged:
        yield Refusal(
            "pipelines",
            "with zero 3 all replicas gather each layer together, so they must be cut alike; use "
            "zero 2",
        )
    if cell.tensor:
        yield Refusal("tensor", "above 1 is not proven with zero 3; use zero 2")
    if cell.offload == "optimizer":
        yield Refusal(
            "offload",
            "'optimizer' with zero 3 would leave the parameters behind; use 'parameters', which "
            "takes both",
        )


def is_proven(cell: Cell) -> bool:
    """Return whether a test compares this cell with a single process."""
    return not refusals(cell)


def is_bitwise(cell: Cell) -> bool:
    """Return whether the weights of a proven cell equal a single process's bit for bit, where
    micro-batches are of one size; else they do within a relative 1e-6.
    """
    return not cell.tensor and cell.zero < 3


def built_in() -> tuple[str, ...]:
    """Return the names of the schedules that come with Trainmaster."""
    return tuple(name for name, schedule in KNOWN.items() if schedule.torch_class)


def all_cells() -> Iterator[Cell]:
    """Yield every cell of the built-in schedules, in the order of the table."""
    for schedule in built_in():
        for ragged in (False, True):
            for tensor in (False, True):
                for zero in ZEROS:
                    for offload in OFFLOADS:
                        for recompute in RECOMPUTES:
                            yield Cell(schedule, zero, tensor, ragged, offload, recompute)


def name_of(cell: Cell) -> str:
    """Return a short name, as tests and the table use it."""
    words = [cell.schedule, f"zero{cell.zero}"]
    words += ["tensor"] if cell.tensor else []
    words += ["ragged"] if cell.ragged else []
    words += [f"offload-{cell.offload}"] if cell.offload != "none" else []
    words += [f"recompute-{cell.recompute}"] if cell.recompute != "none" else []
    return "-".join(words)
