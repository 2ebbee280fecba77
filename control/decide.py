"""The brain: what one turn wants changed, given all that is known. No clock, no I/O, no randomness:
the same snapshot and the same instant always give the same decision.

Read from top to bottom, a turn
1. passes on what ranks answered,
2. draws the consequence of ranks that met, finished, fell or fell silent,
3. answers what people ask,
4. judges the rules, lets them act, verifies what they did, goes back to the whole plan, and takes
   in nodes that joined,
5. begins the next attempt of a run that waits for one,
6. judges checkpoints and lets the superfluous go.

An attempt ends in one turn and the next one begins in another, which is due at once: why it begins
is read from rows alone, so a control plane that dies in between goes on as if it had not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from control import admission, steering
from control.checkpoints import copies, judging, retention
from control.decision import Decision
from control.incidents import alerts, answering, course, grouping, record, verification
from control.lifecycle import ENDED, State
from control.liveness import lingering, silence
from control.recovery import failures, joins, moves
from control.rules.judgement import Judgement
from control.rules.watching import judge_all
from control.snapshot import RunSnapshot
from control.turn import Turn

AT_ONCE = timedelta(0)
WHILE_ACTIVE = timedelta(seconds=0.5)
WHILE_FAR_BACK = timedelta(seconds=30)
"""How often a run is looked at that has many before it in the queue: a thousand that wait cost no
more than a few dozen. Those at the front are looked at when slots become free.
"""
WHILE_RUNNING = timedelta(seconds=1)  # as often as nodes tell of steps; events come in between
WHILE_READING_BACK = timedelta(seconds=2)
WHILE_AT_REST = timedelta(seconds=60)


Judge = Callable[[RunSnapshot], Sequence[Judgement]]


def decide(snapshot: RunSnapshot, *, now: datetime, judge: Judge = judge_all) -> Decision:
    """Return what should change for one run.

    Args:
        judge: says what the rules say of the snapshot; one that remembers the last turn's steps
            says the same as one that begins anew, and sooner.
    """
    turn = Turn(snapshot, now)
    steering.hear(turn)
    failures.judge_ranks(turn)
    steering.follow_hold(turn)
    steering.answer(turn)
    steering.end_overdue(turn)
    answering.answer(turn)
    _judge_rules(turn, judge)
    moves.come_back(turn)
    joins.take_in(turn)
    admission.launch(turn)
    if turn.new_attempt is None:
        judging.judge(turn)
        retention.retire(turn)
        copies.copy_next(turn)
    return turn.decision(_look_again_after(turn))


def _judge_rules(turn: Turn, judge: Judge) -> None:
    attempt = turn.attempt
    if attempt is not None:
        judgements = judge(turn.snapshot)
        alerts.update(turn, judgements, attempt.generation)
        silence.watch(turn)
        lingering.watch(turn)
        answering.let_pass(turn)
        course.act(turn, judgements)
        grouping.join(turn, judgements)
        verification.verify(turn, judgements)
    alerts.close_with_run(turn)
    record.close_with_run(turn)


def _look_again_after(turn: Turn) -> timedelta:
    if turn.state != turn.snapshot.run.state or turn.attempt_end is not None:
        return AT_ONCE
    if turn.state == State.RUNNING:
        return WHILE_RUNNING
    if turn.state == State.QUEUED:
        return min(WHILE_ACTIVE * (1 + turn.snapshot.queued_before), WHILE_FAR_BACK)
    if turn.state not in ENDED:
        return WHILE_ACTIVE
    if turn.chores or any(each.verifying for each in turn.snapshot.checkpoints):
        return WHILE_READING_BACK
    return WHILE_AT_REST
