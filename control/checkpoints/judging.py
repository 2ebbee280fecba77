"""How checkpoints are judged: trusted, quarantined, abandoned. Pure.

One is trusted when healthy steps have followed it and its bytes were read back, and not while an
incident is open whose first bad step lies inside its window. At the end of a run read-back alone
promotes. Which one is used is decided in `control.checkpoints.choice`.
"""

from __future__ import annotations

from collections.abc import Iterable

from control.checkpoints.choice import GOOD, NUMERIC_METRICS, proved_sick, unhealthy_steps
from control.decision import CheckpointChange, NewChore
from control.lifecycle import ENDED, State
from control.lineage import Lineage, is_on, newest_step, surviving
from control.snapshot import Attempt, Checkpoint, Incident, RunSnapshot
from control.turn import Turn
from trainmaster.interval import Interval, at_most
from trainmaster.spec import RunSpec


def interval(spec: RunSpec, last: Attempt | None = None) -> Interval:
    """Return the steps between checkpoints: as asked; for `auto` as they were last in the attempt
    before, where there is one. Ranks adapt it to what they measure.
    """
    asked = spec.checkpoint.every_steps
    if asked != "auto":
        return Interval(asked, f"A checkpoint every {asked} steps, as asked.")
    longest = at_most(spec.train.steps)
    if last is not None and last.checkpoint_every is not None:
        every = min(last.checkpoint_every, spec.train.steps)
        because = f"A checkpoint every {every} steps, as in generation {last.generation}."
        return Interval(every, because)
    because = (
        f"A checkpoint every {longest} of {spec.train.steps} steps, until what one costs "
        "has been measured."
    )
    return Interval(longest, because)


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


def quarantine_restored(turn: Turn, attempt: Attempt, first_bad_step: int) -> None:
    """Never use again the checkpoint that `attempt` began from, if the state in it proved sick."""
    sick = proved_sick(turn.snapshot, attempt, first_bad_step)
    for checkpoint in turn.snapshot.checkpoints:
        if checkpoint.id == sick and checkpoint.state in GOOD:
            problem = (
                f"step {first_bad_step}, the first after it was restored in generation "
                f"{attempt.generation}, was not finite: the state in it is sick"
            )
            quarantine(turn, checkpoint, problem)


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


def _promote(turn: Turn, lineage: Lineage) -> None:
    snapshot = turn.snapshot
    trust_after = snapshot.run.spec.checkpoint.trust_after_steps
    has_ended = turn.state == State.SUCCEEDED
    for checkpoint in _unjudged(turn, lineage):
        if checkpoint.state != "committed" or checkpoint.verified_at is None:
            continue
        questioned = any(
            _questions(snapshot, incident, checkpoint) for incident in snapshot.incidents
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


def _questions(snapshot: RunSnapshot, incident: Incident, checkpoint: Checkpoint) -> bool:
    """Return whether an open incident speaks against trusting `checkpoint`: it began in the window
    of steps that are to prove it, or, where it is about numbers, at any step before.
    """
    last_step = checkpoint.step + snapshot.run.spec.checkpoint.trust_after_steps
    numeric = any(
        rule.name == incident.rule and rule.metric in NUMERIC_METRICS for rule in snapshot.rules
    )
    earliest = 0 if numeric else checkpoint.step + 1
    return earliest <= incident.first_bad_step <= last_step


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
        if not each.abandoned
        and not each.in_memory
        and is_on(lineage, each)
        and each.id not in turn.checkpoints
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
