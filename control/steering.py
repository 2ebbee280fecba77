"""What people ask, and what the ranks answer. Every request ends: applied with the step, or refused
with a sentence. Pure.

Arguments by kind: pause {"hold": bool}; resume {}; stop {"checkpoint": bool}; checkpoint {};
timeline {}; restore, see `control.checkpoints.restoring`; amend {"spec": mapping}; stacks {"rank"};
drill {"fault", "rank", "node", "at_step", "steps", "duration_s", "sticky"}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType

from control import drills
from control.checkpoints import restoring
from control.decision import NewDrill, NewStacks
from control.lifecycle import Desired, Happening, State, refusal
from control.lineage import newest_step
from control.recovery import succession
from control.snapshot import OrderStatus, Request
from control.turn import Turn
from trainmaster.errors import UserError
from trainmaster.orders import NUMERIC_FAULTS
from trainmaster.spec import RunSpec, other_bits

ANSWER_WITHIN_S = 60.0
"""How long ranks that are to stop may say nothing before their attempt is ended."""

WRITE_WITHIN_S = 600.0
"""How long they may take for the last checkpoint and their end once they have answered."""

_FIXED_BY_LINEAGE = ("workload", "params", "data", "train.seed", "train.global_batch")


def hear(turn: Turn) -> None:
    """Pass on what the ranks answered to orders that people asked for."""
    for request in turn.open_requests():
        for order in turn.snapshot.orders:
            if order.request != request.id:
                continue
            if order.state == "refused":
                _hear_refusal(turn, request, order)
            elif order.state == "applied" and order.kind != "stop":
                turn.fulfil(
                    request, f"Applied by the ranks after step {order.step}.", step=order.step
                )


def _hear_refusal(turn: Turn, request: Request, order: OrderStatus) -> None:
    because = order.because or "the ranks refused"
    turn.refuse(request, because + _way_out(turn, order))
    if order.kind == "stop" and turn.state in {State.PAUSING, State.STOPPING}:
        turn.happen(Happening.STOP_REFUSED, f"The ranks go on: {because}")
    if order.kind in {"stop", "hold"}:
        turn.desired = Desired.RUNNING


def _way_out(turn: Turn, order: OrderStatus) -> str:
    """Return what to do where ranks go on because they cannot take the checkpoint to end with."""
    takes_one = order.kind == "stop" and order.args.get("checkpoint", True)
    if not takes_one or order.step is None or order.step >= turn.snapshot.run.spec.train.steps:
        return ""
    return (
        ". Ask again once its store takes checkpoints, or end the run without one: "
        "`trainmaster stop RUN --no-checkpoint`"
    )


def follow_hold(turn: Turn) -> None:
    """Show the run as held or running, by the newest hold or release that its ranks applied."""
    if turn.attempt is None:
        return
    applied = [
        each
        for each in turn.snapshot.orders
        if each.kind in {"hold", "release"} and each.state == "applied"
    ]
    if not applied:
        return
    newest = max(applied, key=lambda each: each.seq)
    if newest.kind == "hold" and turn.state == State.RUNNING:
        turn.happen(Happening.HOLD_APPLIED, f"The ranks wait after step {newest.step}.")
    elif newest.kind == "release" and turn.state == State.HELD:
        turn.happen(Happening.HOLD_RELEASED, f"The ranks go on after step {newest.step}.")


def answer(turn: Turn) -> None:
    """Answer each new request, the oldest first; each is judged by the state that those before it
    left.
    """
    for request in sorted(turn.snapshot.requests, key=lambda each: each.id):
        if turn.request_state(request) != "pending" or request.kind not in _HANDLERS:
            continue
        refused = refusal(turn.state, request.kind)
        if refused is not None:
            turn.refuse(request, refused + _advice(turn, request))
            continue
        try:
            _HANDLERS[request.kind](turn, request)
        except UserError as error:
            turn.refuse(request, error.message)


def _advice(turn: Turn, request: Request) -> str:
    if request.kind != "resume" or turn.desired != Desired.HELD:
        return ""
    return " Its ranks are to be held again as soon as they have met: resume it then."


def end_overdue(turn: Turn) -> None:
    """End the attempt of a run that is to pause or stop when its ranks do not answer or end."""
    if turn.attempt is None or turn.state not in {State.PAUSING, State.STOPPING}:
        return
    orders = [each for each in turn.snapshot.orders if each.kind == "stop"]
    asked_at = [each.created_at for each in turn.open_requests("pause", "stop")]
    sent_at = [each.sent_at for each in orders if each.sent_at is not None]
    if not orders or not (asked_at or sent_at):
        return
    has_answered = any(each.state == "applied" for each in orders)
    limit_s = WRITE_WITHIN_S if has_answered else ANSWER_WITHIN_S
    since = max(sent_at or asked_at)
    if turn.snapshot.control_up_since is not None:
        since = max(since, turn.snapshot.control_up_since)
    if turn.now - since < timedelta(seconds=limit_s):
        return
    did_not = "end" if has_answered else "answer"
    told = (
        f"The ranks did not {did_not} within {limit_s:.0f} s; their attempt is ended. The newest "
        "checkpoint holds."
    )
    if turn.state == State.PAUSING:
        _rest(turn, "pause", told)
    else:
        _rest(turn, "stop", told)


def _rest(turn: Turn, kind: str, told: str, request: Request | None = None) -> None:
    """Pause or stop a run whose ranks need not be asked."""
    step = newest_step(turn.snapshot)
    for each in turn.open_requests(kind) if request is None else [request]:
        turn.fulfil(each, told, step=step)
    turn.refuse_open(f"superseded by {kind}")
    turn.end_attempt("paused" if kind == "pause" else "stopped", told)
    turn.happen(Happening.PAUSED if kind == "pause" else Happening.STOPPED, told, step=step)


def _by(request: Request, what: str) -> str:
    return f"{request.actor} asked to {what}" + (f": {request.why}" if request.why else ".")


def _generation(turn: Turn) -> int:
    return turn.attempt.generation if turn.attempt else turn.snapshot.run.generation


def _pause(turn: Turn, request: Request) -> None:
    if request.args.get("hold"):
        _hold(turn, request)
        return
    turn.desired = Desired.PAUSED
    told = _by(request, "pause")
    if turn.state not in {State.RUNNING, State.HELD}:
        _rest(turn, "pause", told, request)
        return
    turn.refuse_open("superseded by pause")
    turn.order("stop", request.id, checkpoint=True)
    turn.accept(request, told, generation=_generation(turn))
    turn.happen(Happening.PAUSE_ORDERED, told)


def _hold(turn: Turn, request: Request) -> None:
    if turn.state not in {State.STARTING, State.RUNNING}:
        raise UserError(f"Only starting or running ranks can be held, and the run is {turn.state}.")
    turn.desired = Desired.HELD
    turn.order("hold", request.id)
    turn.accept(request, _by(request, "hold the ranks"), generation=_generation(turn))


def _resume(turn: Turn, request: Request) -> None:
    turn.desired = Desired.RUNNING
    told = _by(request, "resume")
    if turn.state == State.HELD:
        turn.order("release", request.id)
        turn.accept(request, told, generation=_generation(turn))
        return
    turn.accept(request, told, generation=_generation(turn) + 1)
    turn.happen(Happening.RESUMED, told)


def _stop(turn: Turn, request: Request) -> None:
    turn.desired = Desired.STOPPED
    told = _by(request, "stop")
    if turn.state not in {State.RUNNING, State.HELD, State.PAUSING, State.STOPPING}:
        _rest(turn, "stop", told, request)
        return
    for other in turn.open_requests():
        if other.kind != "stop":
            turn.refuse(other, "superseded by stop")
    turn.order("stop", request.id, checkpoint=bool(request.args.get("checkpoint", True)))
    turn.accept(request, told, generation=_generation(turn))
    turn.happen(Happening.STOP_ORDERED, told)


def _checkpoint(turn: Turn, request: Request) -> None:
    turn.order("checkpoint", request.id)
    turn.accept(request, _by(request, "take a checkpoint"), generation=_generation(turn))


def _restore(turn: Turn, request: Request) -> None:
    if any(each.kind == "restore" for each in turn.open_requests("restore")):
        raise UserError(
            restoring.under_way(turn.snapshot) or "restore is refused: another one has just begun."
        )
    restore = restoring.read(turn.snapshot, request.args)
    told = _by(request, f"restore {restore.checkpoint.id} (step {restore.checkpoint.step})")
    generation = _generation(turn) + 1
    turn.refuse_open("superseded by restore")
    turn.end_attempt("superseded", told)
    turn.accept(request, told, generation=generation)
    turn.desired = Desired.RUNNING
    turn.happen(Happening.RESTORE_ORDERED, told, checkpoint=restore.checkpoint.id)


def _amend(turn: Turn, request: Request) -> None:
    spec = _amended_spec(turn, request)
    told = _by(request, "amend the spec")
    if turn.state in {State.QUEUED, State.PAUSED}:
        turn.spec = spec
        turn.fulfil(request, "The next attempt uses the amended spec.")
        turn.tell("run_amended", told)
    elif turn.state in {State.RUNNING, State.HELD}:
        turn.refuse_open("superseded by amend")
        turn.order("stop", request.id, checkpoint=True)
        turn.accept(request, told, generation=_generation(turn) + 1)
        turn.desired = Desired.RUNNING
    else:
        turn.accept(request, told, generation=_generation(turn) + 1)
        turn.desired = Desired.RUNNING
        turn.happen(Happening.AMENDED, told)


def _amended_spec(turn: Turn, request: Request) -> RunSpec:
    """Return the new spec.

    Raises:
        UserError: it is not a spec, or changes what earlier steps were made of.
    """
    spec = succession.amended_spec(request.args)
    for path in _FIXED_BY_LINEAGE:
        if _field(spec, path) != _field(turn.snapshot.run.spec, path):
            raise UserError(
                f"{path} cannot be amended: the steps so far were made with it. Submit a new run "
                "instead."
            )
    problem = other_bits(turn.snapshot.run.spec, spec.train, spec.parallel)
    if problem is not None:
        raise UserError(f"{problem}.")
    reached = newest_step(turn.snapshot)
    if spec.train.steps < reached:
        raise UserError(
            f"train.steps is {spec.train.steps}, and the run has reached step {reached}: give at "
            f"least {reached}, or restore an earlier checkpoint first."
        )
    return spec


def _field(spec: RunSpec, path: str) -> object:
    value: object = spec
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _drill(turn: Turn, request: Request) -> None:
    drill = drills.read(request.id, request.args)
    reached = newest_step(turn.snapshot)
    last_step = drill.at_step + drill.steps - 1 if drill.at_step is not None else None
    if drill.fault in NUMERIC_FAULTS and last_step is not None and last_step <= reached:
        raise UserError(
            f"The run has reached step {reached}, and the drill is for steps {drill.at_step} to "
            f"{last_step}."
        )
    generation = _generation(turn)
    turn.drills.append(NewDrill(drill, request.id, generation))
    turn.fulfil(request, f"The drill {drill.fault} is on its way to generation {generation}.")
    turn.tell(
        "drill_sent", _by(request, f"inject {drill.fault}"), drill=drill.model_dump(mode="json")
    )


def _timeline(turn: Turn, request: Request) -> None:
    turn.order("timeline", request.id)
    turn.accept(request, _by(request, "record the next step"), generation=_generation(turn))


def _stacks(turn: Turn, request: Request) -> None:
    rank = request.args.get("rank")
    turn.stacks.append(NewStacks(None if rank is None else (int(rank),), request=request.id))
    whose = "all ranks" if rank is None else f"rank {rank}"
    turn.fulfil(request, f"The agents of generation {_generation(turn)} are asked for {whose}.")
    turn.tell("stacks_asked", _by(request, f"see the stacks of {whose}"), rank=rank)


_HANDLERS: Mapping[str, Callable[[Turn, Request], None]] = MappingProxyType(
    {
        "pause": _pause,
        "resume": _resume,
        "stop": _stop,
        "checkpoint": _checkpoint,
        "restore": _restore,
        "amend": _amend,
        "drill": _drill,
        "timeline": _timeline,
        "stacks": _stacks,
    }
)
