"""Which checkpoint a generation begins from, and how checkpoints are judged: trusted, quarantined,
abandoned. Pure.

After an exit without numeric evidence the newest good one on the surviving lineage is used. After
numeric trouble it is the newest trusted one from before the first bad step. One that failed is
never tried again by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from control import budgets
from control.decision import CheckpointChange, NewChore
from control.lifecycle import ENDED, State
from control.lineage import Lineage, is_on, newest_step, surviving
from control.snapshot import Checkpoint, RunSnapshot
from control.turn import Turn
from trainmaster.spec import RunSpec

GOOD = frozenset({"committed", "trusted"})


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint to begin from, None for step 0, and why this one, as a sentence."""

    checkpoint: Checkpoint | None
    because: str

    @property
    def step(self) -> int:
        """The step after which the generation begins."""
        return self.checkpoint.step if self.checkpoint else 0


def interval(spec: RunSpec) -> int:
    """Return the steps between checkpoints: as asked; for `auto` a tenth of the run, within 10 and
    1000, and at least one per run.
    """
    every = spec.checkpoint.every_steps
    if every != "auto":
        return every
    return min(spec.train.steps, max(10, min(1000, spec.train.steps // 10)))


def choose_newest(snapshot: RunSnapshot) -> Choice:
    """Return the newest good checkpoint on the surviving lineage: what an exit without numeric
    evidence is followed by.
    """
    candidates = _candidates(snapshot)
    for checkpoint in candidates:
        tried = budgets.tries(snapshot, checkpoint.id)
        if tried < budgets.TRIES_PER_CHECKPOINT:
            return Choice(
                checkpoint,
                f"Goes on from {_named(checkpoint)}, the newest good checkpoint.",
            )
    if candidates:
        return Choice(
            None,
            f"Begins again at step 0: each of {len(candidates)} good checkpoints has been tried "
            f"{budgets.TRIES_PER_CHECKPOINT} times.",
        )
    return Choice(None, "Begins at step 0: there is no good checkpoint yet.")


def choose_before(snapshot: RunSnapshot, first_bad_step: int) -> Choice:
    """Return the checkpoint that numeric trouble since `first_bad_step` is followed by."""
    before = [
        each
        for each in _candidates(snapshot)
        if each.step < first_bad_step
        and budgets.tries(snapshot, each.id) < budgets.TRIES_PER_CHECKPOINT
    ]
    for checkpoint in before:
        if checkpoint.state == "trusted":
            return Choice(
                checkpoint,
                f"Goes back to {_named(checkpoint)}, the newest trusted checkpoint before step "
                f"{first_bad_step}, the first bad one.",
            )
    for checkpoint in before:
        if _healthy_step_between(snapshot, checkpoint.step, first_bad_step):
            return Choice(
                checkpoint,
                f"Goes back to {_named(checkpoint)}: none before step {first_bad_step}, the first "
                "bad one, is trusted yet, and healthy steps followed this one.",
            )
    return Choice(
        None,
        f"Begins again at step 0: no usable checkpoint lies before step {first_bad_step}, the "
        "first bad one.",
    )


def _named(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.id} (step {checkpoint.step})"


def _candidates(snapshot: RunSnapshot) -> list[Checkpoint]:
    lineage = surviving(snapshot)
    found = [
        each
        for each in snapshot.checkpoints
        if each.state in GOOD
        and not each.abandoned
        and each.problem is None
        and is_on(lineage, each)
    ]
    return sorted(found, key=lambda each: (each.step, each.generation), reverse=True)


def judge(turn: Turn) -> None:
    """Quarantine what failed its reading, mark what is off the lineage, promote what has proved
    itself, have the rest read.
    """
    lineage = surviving(turn.snapshot)
    mark_abandoned(turn, lineage)
    for checkpoint in turn.snapshot.checkpoints:
        if checkpoint.state in GOOD and checkpoint.problem is not None:
            quarantine(turn, checkpoint, checkpoint.problem)
    _promote(turn, lineage)
    _read_back(turn, lineage)


def quarantine(turn: Turn, checkpoint: Checkpoint, problem: str) -> None:
    """Never use `checkpoint` again."""
    turn.checkpoints[checkpoint.id] = CheckpointChange(checkpoint.id, problem, state="quarantined")
    turn.tell(
        "checkpoint_quarantined",
        f"{checkpoint.id} is quarantined: {problem}",
        checkpoint=checkpoint.id,
        step=checkpoint.step,
    )


def mark_abandoned(turn: Turn, lineage: Lineage) -> None:
    """Mark the checkpoints that a later generation left behind; what is quarantined stays so."""
    for checkpoint in turn.snapshot.checkpoints:
        is_left = checkpoint.state != "quarantined" and not is_on(lineage, checkpoint)
        if is_left and not checkpoint.abandoned:
            because = (
                f"Generation {max(lineage, default=0)} began before step {checkpoint.step} of "
                f"generation {checkpoint.generation}."
            )
            _mark(turn, checkpoint, because, abandoned=True)


def readmit(turn: Turn, lineage: Lineage) -> None:
    """Take back the mark from checkpoints of a branch that a person went back to."""
    for checkpoint in turn.snapshot.checkpoints:
        if checkpoint.abandoned and is_on(lineage, checkpoint):
            because = f"Generation {max(lineage)} builds on it again."
            _mark(turn, checkpoint, because, abandoned=False)


def _mark(turn: Turn, checkpoint: Checkpoint, because: str, *, abandoned: bool) -> None:
    if checkpoint.id not in turn.checkpoints:
        turn.checkpoints[checkpoint.id] = CheckpointChange(
            checkpoint.id, because, abandoned=abandoned
        )


def is_healthy_after(snapshot: RunSnapshot, step: int) -> bool:
    """Return whether `trust_after_steps` healthy steps have followed `step` on the surviving
    lineage.
    """
    last_step = step + snapshot.run.spec.checkpoint.trust_after_steps
    return newest_step(snapshot) >= last_step and not any(
        step < bad <= last_step for bad in unhealthy_steps(snapshot)
    )


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


def _promote(turn: Turn, lineage: Lineage) -> None:
    snapshot = turn.snapshot
    trust_after = snapshot.run.spec.checkpoint.trust_after_steps
    has_ended = turn.state == State.SUCCEEDED
    for checkpoint in _unjudged(turn, lineage):
        if checkpoint.state != "committed" or checkpoint.verified_at is None:
            continue
        questioned = any(
            checkpoint.step + trust_after >= incident.first_bad_step
            for incident in snapshot.incidents
        )
        if has_ended:
            because = "Trusted: its bytes were read back, and the run ended well."
        elif is_healthy_after(snapshot, checkpoint.step) and not questioned:
            because = (
                f"Trusted: {trust_after} healthy steps followed it, and its bytes were read back."
            )
        else:
            continue
        turn.checkpoints[checkpoint.id] = CheckpointChange(
            checkpoint.id, because, state="trusted", trusted_at=turn.now
        )
        turn.tell(
            "checkpoint_trusted",
            f"{checkpoint.id}: {because}",
            checkpoint=checkpoint.id,
            step=checkpoint.step,
        )


def _read_back(turn: Turn, lineage: Lineage) -> None:
    """Have one checkpoint read at a time, the oldest unread first."""
    snapshot = turn.snapshot
    if any(each.verifying for each in snapshot.checkpoints):
        return
    unread = [
        each
        for each in _unjudged(turn, lineage)
        if each.state == "committed" and each.verified_at is None
    ]
    if unread and (snapshot.nodes or turn.state not in ENDED):
        turn.chores.append(chore("verify", min(unread, key=lambda each: each.step), snapshot))


def _unjudged(turn: Turn, lineage: Lineage) -> Iterable[Checkpoint]:
    return [
        each
        for each in turn.snapshot.checkpoints
        if not each.abandoned and is_on(lineage, each) and each.id not in turn.checkpoints
    ]


def chore(kind: str, checkpoint: Checkpoint, snapshot: RunSnapshot) -> NewChore:
    """Return a chore on `checkpoint` for the node that wrote its manifest, while that node is
    known.
    """
    home = None
    for attempt in snapshot.attempts:
        if attempt.generation == checkpoint.generation:
            home = next(iter(attempt.plan.pipelines[0].nodes), None)
    known = home is not None and snapshot.node(home) is not None
    return NewChore(
        kind,
        {
            "location": checkpoint.location,
            "checkpoint": checkpoint.id,
            "manifest_sha256": checkpoint.manifest_sha256,
        },
        node=home if known else None,
    )
