"""What follows from the facts about ranks: ready, finished, failed, out of contact. Pure.

Failures end the attempt; the next turn begins another (`control.admission`). What a failure costs
is in `control.budgets`.
"""

from __future__ import annotations

from collections.abc import Iterable

from control import budgets, drills, scheduler
from control.checkpoints.choice import GOOD
from control.checkpoints.judging import quarantine
from control.decision import Cordon
from control.lifecycle import WITH_RANKS, Desired, Happening, State
from control.lineage import newest_step
from control.liveness import exits, standstill, witnesses
from control.liveness.exits import FirstFailure
from control.liveness.leases import LEASE_S, node_state, out_of_contact
from control.recovery import endings, moves, proposals
from control.recovery.endings import Ending
from control.snapshot import Attempt
from control.turn import Turn
from trainmaster.errors import ExitCode


def judge_ranks(turn: Turn) -> None:
    """Draw the consequence of what the ranks of the living attempt have told."""
    attempt = turn.attempt
    if attempt is None or turn.state not in WITH_RANKS:
        return
    failure = exits.first_failure(turn.snapshot, now=turn.now)
    if failure is not None:
        _fail(turn, attempt, failure)
        return
    finish = exits.finish(turn.snapshot, now=turn.now)
    if finish is not None:
        _finish(turn, attempt, finish)
        return
    _judge_contact(turn, attempt)
    if turn.attempt is not None:
        _judge_progress(turn, attempt)
    if turn.attempt is not None:
        _judge_ready(turn, attempt)


def is_ready(turn: Turn, attempt: Attempt) -> bool:
    """Return whether the ranks of `attempt` have met: all said so, or a step is stored."""
    ranks = turn.snapshot.ranks
    all_ready = bool(ranks) and all(rank.state == "ready" for rank in ranks)
    return attempt.ready_at is not None or attempt.first_step is not None or all_ready


def _judge_ready(turn: Turn, attempt: Attempt) -> None:
    if not is_ready(turn, attempt):
        return
    begun = (
        f"from step {attempt.resumed_from_step}" if attempt.resumed_from_step else "from the start"
    )
    told = f"Generation {attempt.generation} trains {begun}."
    if turn.state == State.STARTING:
        turn.happen(Happening.RANKS_READY, told, generation=attempt.generation)
    _acknowledge_begun(turn, attempt, told)


def _acknowledge_begun(turn: Turn, attempt: Attempt, told: str) -> None:
    """Note that the ranks of `attempt` do what people asked a new attempt for."""
    for request in turn.open_requests("restore", "resume", "amend"):
        # A release is acknowledged by the ranks that were held, unless later ones took their place.
        newest_asked = attempt.generation - (request.order_seq is not None)
        if request.generation is not None and request.generation <= newest_asked:
            turn.fulfil(request, told, step=attempt.resumed_from_step)


def _judge_contact(turn: Turn, attempt: Attempt) -> None:
    silent = out_of_contact(turn.snapshot, now=turn.now)
    if not silent:
        if turn.state == State.UNREACHABLE:
            ready = is_ready(turn, attempt)
            turn.happen(
                Happening.CONTACT_RESTORED if ready else Happening.CONTACT_RESTORED_EARLY,
                "All nodes of the run are in contact again.",
            )
        return
    names = ", ".join(silent)
    verdicts = _testimony(turn, silent)
    gone = [name for name, each in verdicts.items() if each.fate == "gone"]
    if gone:
        told = "; ".join(f"node {name} is gone ({verdicts[name].because})" for name in gone)
        _retry(turn, attempt, told, "lost", Ending("lost", node=gone[0]), nodes=gone)
        return
    patience_s = turn.snapshot.run.spec.recovery.unreachable_after_s
    longest_s = max(silent.values())
    if patience_s is not None and longest_s >= LEASE_S + patience_s:
        cause = (
            f"node {names} has been out of contact for {longest_s:.0f} s "
            f"(recovery.unreachable_after_s is {patience_s:g})"
        )
        _retry(turn, attempt, cause, "lost", Ending("lost", node=next(iter(silent))))
    elif turn.state in {State.STARTING, State.RUNNING, State.HELD}:
        turn.happen(
            Happening.CONTACT_LOST,
            f"Node {names} is out of contact. That is no evidence that training has stopped; "
            f"{'; '.join(f'of {name}: {each.because}' for name, each in verdicts.items())}. "
            "Nothing is restarted; restore or stop the run if you know better.",
            nodes=list(silent),
        )


def _testimony(turn: Turn, silent: Iterable[str]) -> dict[str, witnesses.Verdict]:
    """Return what witnesses say of each silent node."""
    snapshot = turn.snapshot
    homes = {rank.node for rank in snapshot.ranks}  # whoever trains with it may say so
    heard = [
        node.id
        for node in snapshot.nodes
        if node.id in homes
        and node_state(node, now=turn.now, control_up_since=snapshot.control_up_since) == "present"
    ]
    return {name: witnesses.verdict(name, snapshot.reaches, heard, now=turn.now) for name in silent}


def _judge_progress(turn: Turn, attempt: Attempt) -> None:
    """End an attempt that hangs."""
    hang = standstill.watch(turn, attempt)
    if hang is not None:
        ending = endings.at_rank("hang", hang.rank, turn.snapshot)
        _retry(turn, attempt, hang.cause, "failed", ending, told=hang.how, rank=hang.rank)


def _finish(turn: Turn, attempt: Attempt, finish: exits.Finish) -> None:
    step = finish.step if finish.step is not None else newest_step(turn.snapshot)
    if not finish.ordered:
        told = f"All {turn.snapshot.run.spec.train.steps} steps are done."
        # Its beginning and its end may be seen in one turn.
        _acknowledge_begun(turn, attempt, told)
        turn.end_attempt("succeeded", told)
        turn.refuse_open(f"superseded: {told}")
        turn.desired = Desired.RUNNING
        turn.weights_sha256 = finish.weights_sha256
        turn.happen(Happening.FINISHED, told, step=step)
    elif turn.open_requests("amend"):
        told = f"Stopped after step {step} to go on with the amended spec."
        turn.end_attempt("superseded", told)
        turn.happen(Happening.AMENDED, told, step=step)
    elif turn.state not in {State.PAUSING, State.STOPPING} and moves.finish(turn, attempt, step):
        return
    else:
        _rest(turn, f"after step {step}", step)


def _rest(turn: Turn, when: str, step: int | None = None) -> None:
    """Let the run rest as it was asked to: paused or stopped."""
    kind, happening = _WISHED.get(turn.desired, ("stop", Happening.STOPPED))
    if kind == "pause" and turn.state != State.PAUSING:
        kind, happening = "stop", Happening.STOPPED
    state = "paused" if kind == "pause" else "stopped"
    told = f"{state.capitalize()} {when}."
    for request in turn.open_requests(kind):
        turn.fulfil(request, told, step=step)
    turn.end_attempt(state, told)
    turn.happen(happening, told, step=step)


_WISHED = {
    Desired.PAUSED: ("pause", Happening.PAUSED),
    Desired.STOPPED: ("stop", Happening.STOPPED),
}


def _fail(turn: Turn, attempt: Attempt, failure: FirstFailure) -> None:
    if turn.state in {State.PAUSING, State.STOPPING}:
        _rest(
            turn,
            f"although {failure.cause} meanwhile: work since the newest checkpoint will be redone",
        )
    elif failure.exit_code == ExitCode.BAD_SPEC:
        turn.give_up("bad_spec", f"{failure.sentence}. Another try would end in the same way.")
    elif failure.exit_code == ExitCode.INTEGRITY and _began_badly(turn, attempt, failure):
        turn.end_attempt("failed", failure.cause)
        turn.happen(
            Happening.ATTEMPT_FAILED,
            f"{failure.sentence}. The checkpoint before it is used; that costs no restart.",
            rank=failure.rank,
        )
    else:
        ending = endings.of_failure(failure, turn.snapshot)
        _retry(turn, attempt, failure.cause, "failed", ending, told=failure.told, rank=failure.rank)


def _exclude(turn: Turn, attempt: Attempt, ending: Ending) -> None:
    """Cordon a node that fails its ranks at each start, if the others can take them."""
    because = endings.suspect(turn.snapshot, ending)
    if because is None or ending.node is None:
        return
    others = [node for node in turn.snapshot.nodes if node.id != ending.node]
    placement = turn.snapshot.run.spec.reach
    if scheduler.could_hold(attempt.plan, placement, others, now=turn.now):
        turn.cordons.append(Cordon(ending.node, f"Run {turn.snapshot.run.id}: {because}."))
        turn.tell("node_excluded", f"Cordoned: {because}.", node=ending.node)
    else:
        turn.tell(
            "node_suspected",
            f"{because[0].upper()}{because[1:]}; it is used all the same, since the other nodes "
            "cannot take the ranks.",
            node=ending.node,
        )


def _began_badly(turn: Turn, attempt: Attempt, failure: FirstFailure) -> bool:
    """Quarantine the checkpoint that the attempt could not restore; False when that is not what
    happened.
    """
    if attempt.first_step is not None:
        return False
    for checkpoint in turn.snapshot.checkpoints:
        if checkpoint.id == attempt.resumed_from_checkpoint and checkpoint.state in GOOD:
            quarantine(turn, checkpoint, failure.told or failure.cause)
            return True
    return False


def _retry(
    turn: Turn,
    attempt: Attempt,
    cause: str,
    attempt_state: str,
    ending: Ending,
    *,
    told: str = "",
    **data: object,
) -> None:
    """End the attempt for another one to follow, within the budgets."""
    snapshot = turn.snapshot
    step = attempt.last_step or attempt.resumed_from_step
    drill = drills.behind(snapshot.drills, attempt.generation, step)
    if drill is not None:
        cause = f"{cause} (drill {drill.fault})"
        data["drill"] = drill.fault
    sentence = f"{cause}: {told}" if told else cause
    by = ending.to_json() | ({"drill": drill.fault} if drill else {})
    if endings.ran_out_again(snapshot, ending):
        assert ending.rank is not None, "it is a rank that runs out of memory"
        advice = proposals.smaller(snapshot, attempt, ending.rank)
        because = f"{sentence}. Twice at the same place: another try would end so, too. {advice}"
        turn.give_up("out_of_memory", because, ended_by=by)
        return
    if ending.kind == "passing":
        spent = endings.spent_on_retries(snapshot)
    else:
        spent = budgets.spent_on_restarts(snapshot, now=turn.now)
    if spent is not None:
        turn.give_up("budget_exhausted", f"{sentence}. {spent} A person must look.", ended_by=by)
        return
    if turn.open_requests("pause"):
        turn.desired = Desired.RUNNING  # the hold that was asked for ends with this generation
    turn.end_attempt(attempt_state, cause, ended_by=by)
    _exclude(turn, attempt, ending)
    turn.happen(
        Happening.ATTEMPT_FAILED,
        f"{sentence}. Generation {turn.snapshot.run.next_generation} will follow.",
        cause=cause,
        **data,
    )
