"""Which checkpoints may go: never the one that may be needed next. Pure.

Kept are: the newest `keep_last`, every `keep_every`-th step, the `keep_best` by loss, the pinned,
the one a run would begin from, the newest trusted, the next to become trusted, the target of a
restore, and, while numeric trouble is pending, the two newest trusted from before its first bad
step. A checkpoint is marked retired before its bytes go.

A quarantined one is evidence. It goes when it is old and a trusted one is there, so that a run of
which nothing else is left keeps even that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from control.checkpoints.choice import GOOD, NUMERIC_METRICS, choose_newest
from control.checkpoints.copies import removals
from control.decision import AlertChange, CheckpointChange
from control.lifecycle import ENDED, State
from control.lineage import is_on, surviving
from control.snapshot import Alert, Checkpoint, RunSnapshot
from control.turn import Turn

HELD_BEFORE_TROUBLE = 2
QUARANTINED_FOR = timedelta(days=30)
"""So long after it was taken a quarantined one is still there for somebody to look at."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a checkpoint goes now, and why, as a sentence."""

    checkpoint: Checkpoint
    goes: bool
    because: str


def retire(turn: Turn) -> None:
    """Retire what nobody may need, and have its bytes removed."""
    for verdict in verdicts(turn):
        checkpoint = verdict.checkpoint
        if not verdict.goes or checkpoint.id in turn.checkpoints:
            continue
        turn.checkpoints[checkpoint.id] = CheckpointChange(
            checkpoint.id, verdict.because, state="retired"
        )
        turn.chores.extend(removals(checkpoint, turn.snapshot))


def verdicts(turn: Turn) -> list[Verdict]:
    """Return for each checkpoint that is not retired whether it goes now. Nothing is changed.

    While an attempt is about to begin nothing goes: what it begins from is not settled.
    """
    snapshot = turn.snapshot
    reasons = kept(snapshot, first_bad_steps(turn))
    settled = turn.state == State.RUNNING or turn.state in ENDED
    found = []
    for checkpoint in snapshot.checkpoints:
        because = reasons.get(checkpoint.id)
        if checkpoint.state not in GOOD:
            because = _bad_one_stays(checkpoint, snapshot, turn.now)
        elif checkpoint.in_memory:
            because = "Kept: it lies in memory alone, and goes when a newer state takes its place."
        if because is None and (checkpoint.verifying or checkpoint.scrubbing):
            because = "Kept for now: its bytes are being read."
        elif because is None and any(copy.busy for copy in checkpoint.copies):
            because = "Kept for now: it is being copied."
        elif because is None and not settled:
            because = "Kept for now: from where the next attempt begins is not settled."
        found.append(Verdict(checkpoint, because is None, because or _goes(snapshot, checkpoint)))
    return found


def _bad_one_stays(checkpoint: Checkpoint, snapshot: RunSnapshot, now: datetime) -> str | None:
    """Return why one that is not good stays, or None if it may go."""
    if checkpoint.state != "quarantined":
        return f"Kept: it is {checkpoint.state}."
    if checkpoint.pinned:
        return "Kept: it is pinned."
    if now - checkpoint.created_at < QUARANTINED_FOR:
        return f"Kept: a quarantined one can be looked at for {QUARANTINED_FOR.days} days."
    lineage = surviving(snapshot)
    if not any(each.state == "trusted" and is_on(lineage, each) for each in snapshot.checkpoints):
        return "Kept: it is quarantined, and no trusted one is there."
    return None


def _goes(snapshot: RunSnapshot, checkpoint: Checkpoint) -> str:
    if checkpoint.state == "quarantined":
        return f"Retired: it was quarantined, and has been there for {QUARANTINED_FOR.days} days."
    policy = snapshot.run.spec.checkpoint
    return (
        f"Retired: newer ones are kept (checkpoint.keep_last {policy.keep_last}), and nothing else "
        "keeps it."
    )


def first_bad_steps(turn: Turn) -> list[int]:
    """Return where trouble began: of each numeric rule that is pending or firing, and of each open
    incident.
    """
    metric_of = {rule.name: rule.metric for rule in turn.snapshot.rules}
    changed = {(change.rule, change.scope) for change in turn.alerts}
    alerts: list[Alert | AlertChange] = [
        *turn.alerts,
        *(each for each in turn.snapshot.alerts if (each.rule, each.scope) not in changed),
    ]
    steps = [
        alert.first_bad_step
        for alert in alerts
        if alert.state in {"pending", "firing"} and metric_of.get(alert.rule) in NUMERIC_METRICS
    ]
    steps += [incident.first_bad_step for incident in turn.snapshot.incidents]
    steps += [change.first_bad_step for change in turn.incidents.values() if not change.closed]
    return [step for step in steps if step is not None]


def kept(snapshot: RunSnapshot, trouble_since: Iterable[int] = ()) -> dict[str, str]:
    """Return why each of the good checkpoints that must stay does, by id: the strongest reason."""
    reasons: dict[str, str] = {}
    for checkpoint, because in _reasons(snapshot, trouble_since):
        reasons.setdefault(checkpoint, f"Kept: {because}.")
    return reasons


def _reasons(snapshot: RunSnapshot, trouble_since: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield (id, why it stays), what a person asked for first."""
    policy = snapshot.run.spec.checkpoint
    lineage = surviving(snapshot)
    good = sorted(
        (each for each in snapshot.checkpoints if each.state in GOOD and not each.in_memory),
        key=lambda each: (each.step, each.generation),
    )
    ours = [each for each in good if is_on(lineage, each)]
    left = sorted(
        (each for each in good if not is_on(lineage, each)),
        key=lambda each: (each.created_at, each.id),
    )
    trusted = [each for each in ours if each.state == "trusted"]
    yield from ((each.id, "it is pinned") for each in good if each.pinned)
    yield from _needed_by_name(snapshot)
    for step in trouble_since:
        held = [each for each in trusted if each.step < step][-HELD_BEFORE_TROUBLE:]
        because = f"it is held while the trouble that began at step {step} is not over"
        yield from ((each.id, because) for each in held)
    yield from ((each.id, "it is the newest trusted one") for each in trusted[-1:])
    newest_trusted = trusted[-1].step if trusted else -1
    candidates = [each for each in ours if each.state == "committed" and each.step > newest_trusted]
    yield from ((each.id, "it is the next that may become trusted") for each in candidates[:1])
    because = f"it is among the newest (checkpoint.keep_last {policy.keep_last})"
    yield from ((each.id, because) for each in ours[-policy.keep_last :])
    because = f"it is among the newest left behind (checkpoint.keep_last {policy.keep_last})"
    yield from ((each.id, because) for each in left[-policy.keep_last :])
    because = f"its loss is among the lowest (checkpoint.keep_best {policy.keep_best})"
    yield from ((each.id, because) for each in _best(ours, policy.keep_best))
    if policy.keep_every:
        because = f"its step is one of every {policy.keep_every} (checkpoint.keep_every)"
        yield from ((each.id, because) for each in ours if each.step % policy.keep_every == 0)


def _best(checkpoints: Sequence[Checkpoint], count: int) -> list[Checkpoint]:
    measured = [each for each in checkpoints if each.loss is not None and math.isfinite(each.loss)]
    return sorted(measured, key=lambda each: (each.loss, -each.step))[:count]


def _needed_by_name(snapshot: RunSnapshot) -> Iterator[tuple[str, str]]:
    for request in snapshot.requests:
        if request.kind == "restore" and request.state in {"pending", "accepted"}:
            yield str(request.args.get("checkpoint")), "somebody asked to restore it"
    newest = snapshot.attempt
    if newest is not None and newest.resumed_from_checkpoint and newest.ended_at is None:
        yield newest.resumed_from_checkpoint, "the attempt that lives began from it"
    chosen = choose_newest(snapshot).checkpoint
    if chosen is not None:
        yield chosen.id, "the run would go on from it"
