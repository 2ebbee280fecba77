"""What people answer to a rule that asks, and what happens when nobody does. Pure.

A proposal is answered once. It ends without an answer when its time is over, and when the
generation that it is about has ended: what it saw may not be so any more, and if it is, the rule
fires again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from control.incidents import course, record
from control.lifecycle import State, refusal
from control.rules.actions import describe
from control.snapshot import Incident, Request
from control.turn import Turn
from trainmaster.actions import PlainAction
from trainmaster.errors import UserError

KINDS = frozenset({"approve", "dismiss"})
_ACTION: TypeAdapter[PlainAction] = TypeAdapter(PlainAction)


def answer(turn: Turn) -> None:
    """Do what people answered, the oldest first."""
    for request in sorted(turn.snapshot.requests, key=lambda each: each.id):
        if request.kind not in KINDS or turn.request_state(request) != "pending":
            continue
        refused = refusal(turn.state, request.kind)
        try:
            if refused is not None:
                raise UserError(refused)
            incident = _waiting(turn, request)
            if request.kind == "approve":
                _approve(turn, request, incident)
            else:
                _dismiss(turn, request, incident)
        except UserError as error:
            turn.refuse(request, error.message)


def _waiting(turn: Turn, request: Request) -> Incident:
    name = request.args.get("incident")
    for incident in turn.snapshot.incidents:
        if incident.id == name and incident.proposed is not None:
            if incident.id in turn.incidents:
                raise UserError(f"{name} has just been answered by somebody else.")
            return incident
    raise UserError(f"{name} does not wait for an answer any more: look at what became of it.")


def _approve(turn: Turn, request: Request, incident: Incident) -> None:
    attempt = turn.attempt
    if attempt is None or incident.proposed is None:
        raise UserError("The generation that it asks about has ended.")
    action = action_of(turn, incident, request.args.get("action"))
    told = f"{request.actor} approved to {describe(action)}" + _why(request)
    turn.fulfil(request, f"{told}.", step=None)
    proposed = {**incident.proposed, "action": action.model_dump(mode="json", exclude_none=True)}
    course.carry_out_proposed(turn, attempt, replace(incident, proposed=proposed), told)


def action_of(turn: Turn, incident: Incident, name: object) -> PlainAction:
    """Return the action that `name` means on `incident`: what is proposed if that is its name, else
    as the rule's ladder has it, else as it is by default.

    Raises:
        UserError: there is no such action.
    """
    assert incident.proposed is not None, "it waits for an answer"
    proposed = _ACTION.validate_python(incident.proposed["action"])
    if name is None or name == proposed.action:
        return proposed
    for rule in turn.snapshot.rules:
        for action in rule.actions:
            if rule.name == incident.rule and action.action == name:
                return _ACTION.validate_python(action.model_dump())
    return default_action(name)


def default_action(name: object) -> PlainAction:
    """Return the action of this name as it is by default.

    Raises:
        UserError: there is no such action.
    """
    try:
        return _ACTION.validate_python({"action": name})
    except ValidationError as error:
        raise UserError(f"{name!r} is no action.") from error


def _dismiss(turn: Turn, request: Request, incident: Incident) -> None:
    told = f"{request.actor} dismissed it{_why(request)}."
    turn.fulfil(request, told, step=None)
    record.close(turn, replace(incident, proposed=None), "dismissed", told)


def _why(request: Request) -> str:
    return f": {request.why}" if request.why else ""


def let_pass(turn: Turn) -> None:
    """End the proposals that nobody answered in time, as their rule says, and those of a generation
    that has ended.
    """
    for incident in turn.snapshot.incidents:
        proposed = incident.proposed
        if proposed is None or incident.id in turn.incidents:
            continue
        attempt = turn.attempt
        if attempt is not None and proposed["generation"] != attempt.generation:
            because = f"Generation {proposed['generation']}, about which it asked, has ended."
            record.close(turn, replace(incident, proposed=None), "dismissed", because)
            continue
        answer_by = datetime.fromisoformat(str(proposed["answer_by"]))
        if turn.now < answer_by or turn.state != State.RUNNING or attempt is None:
            continue
        nobody = f"nobody answered until {answer_by.isoformat(timespec='seconds')}"
        if proposed["then"] == "act":
            course.carry_out_proposed(turn, attempt, incident, nobody)
        else:
            because = f"Dismissed: {nobody}."
            record.close(turn, replace(incident, proposed=None), "dismissed", because)
