"""Which checkpoint a generation begins from, and why not another. Pure.

After an exit without numeric evidence it is the newest good one on the surviving lineage. After
numeric trouble it is the newest trusted one from before the first bad step. One that was
quarantined, abandoned, or tried too often is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from control import budgets
from control.checkpoints.memory import is_held
from control.lineage import Lineage, is_on, surviving
from control.snapshot import Attempt, Checkpoint, RunSnapshot

GOOD = frozenset({"committed", "trusted"})
NUMERIC_METRICS = frozenset({"loss", "grad_norm", "non_finite", "applied"})
"""Metrics that speak of the state itself, not of how fast it comes about."""
MAX_REJECTED = 20
"""Rejected ones that are named; those farther back are not."""
_MAX_TOLD = 3

Objection = Callable[[Checkpoint], str | None]
"""Returns why a checkpoint is not used, as a predicate, or None."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that was not chosen although it is newer, and why: "is quarantined"."""

    checkpoint: str
    step: int
    why: str

    def to_json(self) -> dict[str, object]:
        """Return it as events carry it."""
        return {"checkpoint": self.checkpoint, "step": self.step, "why": self.why}


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint to begin from, None for step 0, and why this one, as sentences.

    Attributes:
        rejected: the newer ones, newest first.
    """

    checkpoint: Checkpoint | None
    because: str
    rejected: tuple[Rejected, ...] = ()

    @property
    def step(self) -> int:
        """The step after which the generation begins."""
        return self.checkpoint.step if self.checkpoint else 0


def choose_newest(snapshot: RunSnapshot) -> Choice:
    """Return the newest good checkpoint on the surviving lineage: what an exit without numeric
    evidence is followed by.
    """

    def objection(checkpoint: Checkpoint) -> str | None:
        if checkpoint.in_memory and not is_held(snapshot, checkpoint):
            return "was kept in memory alone, by nodes that are gone or began anew"
        return _unusable(snapshot, lineage, checkpoint) or _worn_out(snapshot, checkpoint)

    lineage = surviving(snapshot)
    chosen, rejected = _first_without(objection, _newest_first(snapshot))
    if chosen is not None:
        where = ", which nodes keep in memory" if chosen.in_memory else ""
        because = f"Goes on from {_named(chosen)}, the newest good checkpoint{where}."
    elif any(
        _unusable(snapshot, lineage, each) is None and not each.in_memory
        for each in snapshot.checkpoints
    ):
        because = "Begins again at step 0: each good checkpoint has been tried too often."
    else:
        because = "Begins at step 0: there is no good checkpoint yet."
    return _explained(chosen, because, rejected)


def choose_before(snapshot: RunSnapshot, first_bad_step: int, *, earlier: int = 0) -> Choice:
    """Return the checkpoint that numeric trouble since `first_bad_step` is followed by.

    While none before it is trusted yet, a committed one that healthy steps followed will do.

    Args:
        earlier: so many trusted ones further back, or as far back as there are.
    """

    def usable(checkpoint: Checkpoint) -> str | None:
        if checkpoint.step >= first_bad_step:
            return f"was not taken before step {first_bad_step}, the first bad one"
        if checkpoint.in_memory:
            return "is kept in memory alone, where nobody has read it back"
        if checkpoint.id == sick:
            return "was followed by no healthy step when it was restored"
        return _unusable(snapshot, lineage, checkpoint) or _worn_out(snapshot, checkpoint)

    def trusted(checkpoint: Checkpoint) -> str | None:
        untrusted = None if checkpoint.state == "trusted" else f"is {checkpoint.state}, not trusted"
        return usable(checkpoint) or untrusted

    def promising(checkpoint: Checkpoint) -> str | None:
        followed = _healthy_step_between(snapshot, checkpoint.step, first_bad_step)
        return usable(checkpoint) or (None if followed else "has no healthy step after it")

    lineage, attempt = surviving(snapshot), snapshot.attempt
    sick = proved_sick(snapshot, attempt, first_bad_step) if attempt else None
    newest_first = _newest_first(snapshot)
    usable_ones = [each for each in newest_first if trusted(each) is None]
    helpless = {each.id for each in usable_ones[: min(earlier, len(usable_ones) - 1)]}

    def further_back(checkpoint: Checkpoint) -> str | None:
        return trusted(checkpoint) or ("did not help" if checkpoint.id in helpless else None)

    chosen, rejected = _first_without(further_back if helpless else trusted, newest_first)
    which = f"{len(helpless)} further back than " if helpless else ""
    because = (
        f"Goes back to {{}}, {which}the newest trusted checkpoint before step {first_bad_step}, "
        "the first bad one."
    )
    if chosen is None:
        chosen, rejected = _first_without(promising, newest_first)
        because = (
            f"Goes back to {{}}: none before step {first_bad_step}, the first bad one, is trusted "
            "yet, and healthy steps followed this one."
        )
    if chosen is None:
        because = (
            f"Begins again at step 0: no usable checkpoint lies before step {first_bad_step}, the "
            "first bad one."
        )
    return _explained(chosen, because.format(_named(chosen) if chosen else ""), rejected)


def proved_sick(snapshot: RunSnapshot, attempt: Attempt, first_bad_step: int) -> str | None:
    """Return the id of the checkpoint that `attempt` resumed from if already its first step was not
    finite: what it holds is sick, whatever its digests say.
    """
    is_first = first_bad_step == attempt.resumed_from_step + 1
    if is_first and first_bad_step in unhealthy_steps(snapshot):
        return attempt.resumed_from_checkpoint
    return None


def unhealthy_steps(snapshot: RunSnapshot) -> set[int]:
    """Return the steps in the windows whose update was skipped, or whose loss or gradient norm is
    not finite.
    """
    unhealthy = {each.step for each in snapshot.windows.get("applied", ()) if each.value == 0}
    for metric in ("loss", "grad_norm"):
        unhealthy |= {
            each.step
            for each in snapshot.windows.get(metric, ())
            if each.value is not None and not math.isfinite(each.value)
        }
    return unhealthy


def _healthy_step_between(snapshot: RunSnapshot, after_step: int, before_step: int) -> bool:
    unhealthy = unhealthy_steps(snapshot)
    return any(
        after_step < each.step < before_step
        and each.step not in unhealthy
        and each.value is not None
        for each in snapshot.windows.get("loss", ())
    )


def _newest_first(snapshot: RunSnapshot) -> list[Checkpoint]:
    return sorted(snapshot.checkpoints, key=lambda each: (each.step, each.generation), reverse=True)


def _first_without(
    objection: Objection, checkpoints: Iterable[Checkpoint]
) -> tuple[Checkpoint | None, list[Rejected]]:
    rejected: list[Rejected] = []
    for checkpoint in checkpoints:
        why = objection(checkpoint)
        if why is None:
            return checkpoint, rejected
        rejected.append(Rejected(checkpoint.id, checkpoint.step, why))
    return None, rejected


def _unusable(snapshot: RunSnapshot, lineage: Lineage, checkpoint: Checkpoint) -> str | None:
    if checkpoint.state not in GOOD:
        return "is not committed yet" if checkpoint.state == "writing" else f"is {checkpoint.state}"
    if checkpoint.problem is not None:
        return "did not prove right when it was read"
    if checkpoint.abandoned or not is_on(lineage, checkpoint):
        return "lies on a branch that a later generation left"
    return None


def _worn_out(snapshot: RunSnapshot, checkpoint: Checkpoint) -> str | None:
    tried = budgets.tries(snapshot, checkpoint.id)
    return f"has been tried {tried} times" if tried >= budgets.TRIES_PER_CHECKPOINT else None


def _explained(chosen: Checkpoint | None, because: str, rejected: Sequence[Rejected]) -> Choice:
    if rejected:
        told = "; ".join(f"{each.checkpoint} {each.why}" for each in rejected[:_MAX_TOLD])
        more = len(rejected) - _MAX_TOLD
        because += f" Passed over: {told}" + (f"; and {more} more." if more > 0 else ".")
    return Choice(chosen, because, tuple(rejected[:MAX_REJECTED]))


def _named(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.id} (step {checkpoint.step})"
