"""Which checkpoints may go: never the one that may be needed next. Pure.

Kept are: the newest `keep_last`, every `keep_every`-th step, the `keep_best` by loss, the pinned,
the one a run would begin from, the newest trusted, the next to become trusted, the target of a
restore, and, while numeric trouble is pending, the two newest trusted from before its first bad
step. A checkpoint is marked retired before its bytes go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from control.checkpoints import GOOD, choose_newest, chore
from control.decision import AlertChange, CheckpointChange
from control.lineage import is_on, surviving
from control.snapshot import Alert, Checkpoint, RunSnapshot
from control.turn import Turn

NUMERIC_METRICS = frozenset({"loss", "grad_norm", "non_finite", "applied"})
HELD_BEFORE_TROUBLE = 2


def retire(turn: Turn) -> None:
    """Retire what nobody may need, and have its bytes removed."""
    snapshot = turn.snapshot
    keep = kept(snapshot, first_bad_steps(turn))
    for checkpoint in snapshot.checkpoints:
        if checkpoint.state not in GOOD or checkpoint.id in keep or checkpoint.verifying:
            continue
        if checkpoint.id in turn.checkpoints:
            continue
        because = "Retired: newer ones are kept (checkpoint.keep_last)."
        turn.checkpoints[checkpoint.id] = CheckpointChange(checkpoint.id, because, state="retired")
        turn.chores.append(chore("retire", checkpoint, snapshot))


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


def kept(snapshot: RunSnapshot, trouble_since: Iterable[int] = ()) -> set[str]:
    """Return the ids of the good checkpoints that must stay."""
    policy = snapshot.run.spec.checkpoint
    lineage = surviving(snapshot)
    good = sorted(
        (each for each in snapshot.checkpoints if each.state in GOOD),
        key=lambda each: (each.step, each.generation),
    )
    ours = [each for each in good if is_on(lineage, each)]
    left = sorted(
        (each for each in good if not is_on(lineage, each)),
        key=lambda each: (each.created_at, each.id),
    )
    trusted = [each for each in ours if each.state == "trusted"]
    keep = {each.id for each in good if each.pinned}
    keep |= {each.id for each in (*ours[-policy.keep_last :], *left[-policy.keep_last :])}
    keep |= {each.id for each in _best(ours, policy.keep_best)}
    if policy.keep_every:
        keep |= {each.id for each in ours if each.step % policy.keep_every == 0}
    keep |= {each.id for each in trusted[-1:]}
    newest_trusted = trusted[-1].step if trusted else -1
    candidates = [each for each in ours if each.state == "committed" and each.step > newest_trusted]
    keep |= {each.id for each in candidates[:1]}
    for step in trouble_since:
        held = [each for each in trusted if each.step < step]
        keep |= {each.id for each in held[-HELD_BEFORE_TROUBLE:]}
    return keep | _needed_by_name(snapshot)


def _best(checkpoints: Sequence[Checkpoint], count: int) -> list[Checkpoint]:
    measured = [each for each in checkpoints if each.loss is not None and math.isfinite(each.loss)]
    return sorted(measured, key=lambda each: (each.loss, -each.step))[:count]


def _needed_by_name(snapshot: RunSnapshot) -> set[str]:
    needed = {
        str(request.args.get("checkpoint"))
        for request in snapshot.requests
        if request.kind == "restore" and request.state in {"pending", "accepted"}
    }
    newest = snapshot.attempt
    if newest is not None and newest.resumed_from_checkpoint and newest.ended_at is None:
        needed.add(newest.resumed_from_checkpoint)
    chosen = choose_newest(snapshot).checkpoint
    if chosen is not None:
        needed.add(chosen.id)
    return needed
