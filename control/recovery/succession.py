"""What the next attempt is: why it begins, from which checkpoint, and what differs this time. Read
from rows alone. Pure.

Whoever ended the last attempt has left the reason in rows: an accepted request, an incident whose
last action is a rollback, or the end of the attempt itself. So any turn, also one after a restart
of control, comes to the same next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from control.checkpoints import restoring
from control.checkpoints.choice import Choice, choose_before, choose_newest
from control.lifecycle import State
from control.lineage import inherited_lr_windows, inherited_skip
from control.recovery import moves
from control.recovery.endings import cause_kind
from control.recovery.moves import Move
from control.snapshot import Attempt, Incident, LrWindow, Range, Request, RunSnapshot
from trainmaster.batches import normalise
from trainmaster.document import Document, validate
from trainmaster.errors import UserError
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Beginning:
    """How the next attempt begins. `request` is the person's whose wish it fulfils; `plan` is set
    when another one was asked for.
    """

    kind: str
    cause: str
    choice: Choice
    spec: RunSpec
    skip: tuple[Range, ...]
    lr_windows: tuple[LrWindow, ...]
    own_skip: tuple[Range, ...] = ()
    lr_factor: float | None = None
    plan: Plan | None = None
    incident: str | None = None
    request: Request | None = None


def beginning(snapshot: RunSnapshot) -> Beginning:
    """Return how the next attempt begins.

    Raises:
        UserError: a restore or amend that was accepted can no longer be carried out.
    """
    asked = {request.kind: request for request in snapshot.requests if request.state == "accepted"}
    newest = snapshot.attempt
    if "restore" in asked:
        return _restored(snapshot, asked["restore"])
    if "amend" in asked:
        request = asked["amend"]
        return _continued(
            snapshot,
            "amend",
            _asked("amended the run", request),
            request,
            amended_spec(request.args),
        )
    if newest is None:
        return _continued(snapshot, "start", "The first attempt.", asked.get("resume"))
    move = moves.pending(newest)
    if move is not None:
        return _moved(snapshot, newest, move)
    for incident in snapshot.incidents:
        action = incident.actions[-1] if incident.actions else {}
        if action.get("action") == "rollback" and action.get("generation") == newest.generation:
            return _rolled_back(snapshot, newest, incident, action)
    if "resume" in asked and snapshot.run.state == State.QUEUED:
        return _continued(
            snapshot, "resume", _asked("resumed the run", asked["resume"]), asked["resume"]
        )
    return _after_failure(snapshot, newest)


def amended_spec(args: Mapping[str, Any]) -> RunSpec:
    """Return the spec that an amend request carries.

    Raises:
        UserError: it carries none, or one that is wrong.
    """
    given = args.get("spec")
    if not isinstance(given, Mapping):
        raise UserError("amend needs the whole new spec.")
    return validate(RunSpec, Document(dict(given)))


def _asked(what: str, request: Request) -> str:
    return f"{request.actor} {what}" + (f": {request.why}" if request.why else "")


def _continued(
    snapshot: RunSnapshot,
    kind: str,
    cause: str,
    request: Request | None = None,
    spec: RunSpec | None = None,
    *,
    incident: str | None = None,
) -> Beginning:
    spec = spec or snapshot.run.spec
    choice = choose_newest(snapshot)
    return Beginning(
        kind=kind,
        cause=cause,
        choice=choice,
        spec=spec,
        skip=inherited_skip(snapshot, spec, choice.checkpoint),
        lr_windows=inherited_lr_windows(snapshot),
        incident=incident,
        request=request,
    )


def _after_failure(snapshot: RunSnapshot, newest: Attempt) -> Beginning:
    still_open = {incident.id for incident in snapshot.incidents}
    incident = newest.incident if newest.incident in still_open else None
    for each in snapshot.incidents:
        if each.actions and each.actions[-1].get("generation") == newest.generation:
            incident = each.id
    for checkpoint in snapshot.checkpoints:
        is_culprit = checkpoint.id == newest.resumed_from_checkpoint and newest.first_step is None
        if is_culprit and checkpoint.state == "quarantined":
            cause = f"{checkpoint.id} could not be restored: {newest.because}"
            return _continued(snapshot, "fallback", cause, incident=incident)
    cause = newest.because or f"generation {newest.generation} ended"
    return _continued(snapshot, cause_kind(newest), cause, incident=incident)


def _moved(snapshot: RunSnapshot, newest: Attempt, move: Move) -> Beginning:
    still_open = {incident.id for incident in snapshot.incidents}
    incident = move.incident if move.incident in still_open else newest.incident
    begun = _continued(snapshot, move.kind, move.because)
    kept = incident if incident in still_open else None
    return replace(begun, plan=move.plan, incident=kept)


def _rolled_back(
    snapshot: RunSnapshot, newest: Attempt, incident: Incident, action: Mapping[str, Any]
) -> Beginning:
    spec = snapshot.run.spec
    choice = choose_before(
        snapshot, int(action["first_bad_step"]), earlier=int(action.get("earlier") or 0)
    )
    own_skip = normalise(action.get("own_skip") or ())
    windows = inherited_lr_windows(snapshot)
    lr_factor = None
    if action.get("lr_window"):
        first, last, lr_factor = action["lr_window"]
        # A checkpoint that fell out meanwhile moves the beginning, not the end, of the window.
        windows = (*windows, (min(int(first), choice.step + 1), int(last), float(lr_factor)))
    return Beginning(
        kind="rollback",
        cause=newest.because or f"The rule {incident.rule!r} fired",
        choice=replace(choice, because=f"{choice.because} {action.get('differs', '')}".rstrip()),
        spec=spec,
        skip=normalise((*inherited_skip(snapshot, spec, choice.checkpoint), *own_skip)),
        own_skip=own_skip,
        lr_windows=windows,
        lr_factor=lr_factor,
        incident=incident.id,
    )


def _restored(snapshot: RunSnapshot, request: Request) -> Beginning:
    restore = restoring.read(snapshot, request.args)
    checkpoint = restore.checkpoint
    differs = " ".join(restore.differs) or "Nothing differs."
    because = f"Goes back to {checkpoint.id} (step {checkpoint.step}), as asked. {differs}"
    return Beginning(
        kind="restore",
        cause=_asked(f"restored {checkpoint.id}", request),
        choice=Choice(checkpoint, because),
        spec=snapshot.run.spec,
        skip=restore.skip,
        own_skip=restore.own_skip,
        lr_windows=restore.lr_windows,
        lr_factor=restore.lr_factor,
        plan=restore.plan,
        request=request,
    )
