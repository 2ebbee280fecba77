"""Steering: what a person asks of a run, how far it has come, and what a restore would lose and
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from control.api import bodies, preview
from control.api.answers import Answer
from control.api.bodies import AnswerBody, Key, RequestBody
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.api.submission import checked, unplaceable
from control.checkpoints import restoring
from control.checkpoints.choice import GOOD
from control.db import asking, listings, queries
from control.db.asking import Ask, KeyReusedError
from control.db.fleet import chores
from control.db.load import load
from control.incidents.answering import default_action
from control.incidents.rungs import CARRIERS
from control.rights import Caller
from control.snapshot import RunSnapshot
from trainmaster import document
from trainmaster.document import Document
from trainmaster.errors import ConflictError, ForbiddenError, NotFoundError, Problem, SpecError
from trainmaster.spec import RunSpec

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["steering"])

_ARGS: Mapping[str, type[BaseModel]] = {
    "pause": bodies.PauseArgs,
    "resume": bodies.NoArgs,
    "stop": bodies.StopArgs,
    "checkpoint": bodies.NoArgs,
    "restore": bodies.RestoreArgs,
    "amend": bodies.AmendArgs,
    "drill": bodies.DrillArgs,
    "timeline": bodies.NoArgs,
    "approve": bodies.ApproveArgs,
    "dismiss": bodies.DismissArgs,
    "stacks": bodies.StacksArgs,
}


@router.post("/runs/{run}/requests")
def ask(
    run: str,
    body: RequestBody,
    shell: WithShell,
    caller: ByCaller,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> Response:
    """Ask something of a run: 202, or the earlier request with the same key."""
    return _asked(shell, caller, run, body, body.idempotency_key or idempotency_key)


@router.post("/runs/{run}/drills")
def drill(run: str, body: bodies.DrillArgs, shell: WithShell, caller: ByCaller) -> Response:
    """Inject a fault on purpose; the same as a request of kind `drill`."""
    args = body.model_dump(mode="json", exclude_unset=True)
    return _asked(shell, caller, run, RequestBody(kind="drill", args=args), None)


def _asked(shell: Shell, caller: Caller, run: str, body: RequestBody, key: str | None) -> Response:
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        before = asking.repeated(connection, run, key)
        if before is not None:
            found = listings.request(connection, before)
            if _is_another(body, found):
                raise KeyReusedError(
                    f"this idempotency key has asked for a {found['kind']} before (request "
                    f"{before}), not for this: use a new key"
                )
            return Answer(found)
    args = _checked_args(shell, run, body)
    asked = Ask(body.kind, args, caller.actor, body.why, key, body.expected_version)
    with shell.db.write() as connection:
        request = asking.ask(connection, run, asked, now=shell.clock.now())
    shell.wake()
    with shell.db.read() as connection:
        return Answer(listings.request(connection, request), status_code=202)


def _is_another(body: RequestBody, before: Mapping[str, Any]) -> bool:
    """Return whether a body asks for something else than the request that its key stands for."""
    if body.kind != before["kind"]:
        return True
    if body.kind == "amend":
        return False  # kept as the spec that was read out of it
    try:
        args = _ARGS[body.kind].model_validate(body.args)
    except ValidationError:
        return True
    return bool(args.model_dump(mode="json", exclude_none=True) != before["args"])


def _checked_args(shell: Shell, run: str, body: RequestBody) -> dict[str, Any]:
    """Return the arguments of a request as they are stored.

    Raises:
        SpecError: they do not fit the kind of request, the run or its workload.
        ForbiddenError: drills are not allowed here.
        ConflictError: the checkpoint cannot be used.
    """
    model = _ARGS[body.kind]
    try:
        args = model.model_validate(body.args)
    except ValidationError as error:
        raise SpecError(document.problems_of(error, model, Document(body.args))) from error
    match args:
        case bodies.RestoreArgs():
            _check_restore(shell, run, args)
        case bodies.AmendArgs():
            return {"spec": _amended(shell, run, args).model_dump(mode="json")}
        case bodies.DrillArgs():
            _check_drill(shell, run, args)
        case bodies.ApproveArgs() | bodies.DismissArgs():
            _check_answer(shell, run, args)
        case bodies.StacksArgs(rank=rank) if rank is not None:
            _check_rank(shell, run, rank)
        case _:
            pass
    return args.model_dump(mode="json", exclude_none=True)


def _check_restore(shell: Shell, run: str, args: bodies.RestoreArgs) -> RunSnapshot:
    """Return the snapshot on which the restore was found to be possible."""
    with shell.db.read() as connection:
        found = listings.checkpoint(connection, args.checkpoint)
        loaded = load(connection, run, now=shell.clock.now(), control_up_since=shell.up_since)
    if loaded is None:
        raise NotFoundError(f"there is no run {run!r}")
    if found["run"] != run:
        raise NotFoundError(
            f"checkpoint {args.checkpoint} belongs to run {found['run']}, not to {run}"
        )
    if found["state"] not in GOOD:
        raise ConflictError(
            f"restore is refused: checkpoint {args.checkpoint} is {found['state']}"
            + (f": {found['because']}" if found["because"] else ""),
            code="checkpoint_unusable",
        )
    asked = restoring.read(loaded.snapshot, args.model_dump(mode="json", exclude_none=True))
    problem = (
        None
        if asked.plan is None
        else unplaceable(shell, asked.plan, loaded.snapshot.run.spec.reach)
    )
    if problem is not None:
        raise SpecError([problem])
    return loaded.snapshot


def _amended(shell: Shell, run: str, args: bodies.AmendArgs) -> RunSpec:
    spec = checked(shell, args.spec).spec
    with shell.db.read() as connection:
        before = RunSpec.model_validate(queries.run_row(connection, run)["spec"])
    kept, wanted = before.checkpoint, spec.checkpoint
    fixed = [
        Problem(
            f"checkpoint.{key}",
            "cannot be changed by an amend: what the run has saved is looked for, copied and "
            f"removed where it began; {'leave it out' if one is None else f'write {one}'} as "
            "before, or submit another run",
        )
        for key, one, other in (
            ("store", kept.store, wanted.store),
            ("local", kept.local, wanted.local),
        )
        if one != other
    ]
    if spec.train.seed != before.train.seed:
        fixed.append(Problem("train.seed", "cannot be changed by an amend: submit another run"))
    if fixed:
        raise SpecError(fixed)
    return spec


def _check_drill(shell: Shell, run: str, args: bodies.DrillArgs) -> None:
    if not shell.settings.allow_drills:
        raise ForbiddenError(
            "drills are not allowed here: start the control plane with TRAINMASTER_ALLOW_DRILLS=1",
            code="drills_forbidden",
        )
    ranks = _check_rank(shell, run, args.rank)
    if args.node is not None and ranks and args.node not in {each["node"] for each in ranks}:
        raise SpecError([Problem("node", f"{args.node!r} has no rank of this run")])


def _check_rank(shell: Shell, run: str, rank: int | None) -> list[dict[str, Any]]:
    """Return the ranks of the run's generation.

    Raises:
        SpecError: `rank` is none of them.
    """
    with shell.db.read() as connection:
        row = queries.run_row(connection, run)
        ranks = queries.ranks_of(connection, run, row["generation"])
    if rank is not None and ranks and rank >= len(ranks):
        raise SpecError([Problem("rank", f"{rank} is not one of the run's {len(ranks)} ranks")])
    return ranks


def _check_answer(shell: Shell, run: str, args: bodies.ApproveArgs | bodies.DismissArgs) -> None:
    with shell.db.read() as connection:
        found = listings.incident(connection, args.incident)
    if found["run"] != run:
        raise NotFoundError(f"incident {args.incident} belongs to run {found['run']}, not to {run}")
    if found["proposed"] is None:
        state = found["closed_as"] or found["state"]
        raise ConflictError(
            f"incident {args.incident} does not wait for an answer: it is {state}",
            code="not_waiting",
        )
    if isinstance(args, bodies.ApproveArgs) and args.action is not None:
        action = default_action(args.action).action
        if action not in CARRIERS:
            raise SpecError([Problem("action", f"{action!r} cannot be carried out here")])


@router.post("/incidents/{incident}/approve")
def approve(
    incident: str,
    shell: WithShell,
    caller: ByCaller,
    body: AnswerBody | None = None,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> Response:
    """Let a rule that asks take its action; the same as a request of kind `approve`."""
    return _answered(shell, caller, "approve", incident, body or AnswerBody(), idempotency_key)


@router.post("/incidents/{incident}/dismiss")
def dismiss(
    incident: str,
    shell: WithShell,
    caller: ByCaller,
    body: AnswerBody | None = None,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> Response:
    """Close an incident that asks, without an action; the same as a request of kind `dismiss`."""
    return _answered(shell, caller, "dismiss", incident, body or AnswerBody(), idempotency_key)


def _answered(
    shell: Shell,
    caller: Caller,
    kind: Literal["approve", "dismiss"],
    incident: str,
    body: AnswerBody,
    key: str | None,
) -> Response:
    with shell.db.read() as connection:
        run = listings.incident(connection, incident)["run"]
    args = {"incident": incident} | ({"action": body.action} if body.action else {})
    asked = RequestBody(kind=kind, args=args, why=body.why, expected_version=body.expected_version)
    return _asked(shell, caller, run, asked, body.idempotency_key or key)


@router.get("/runs/{run}/requests")
def list_requests(run: str, shell: WithShell) -> Response:
    """List what was ever asked of a run, oldest first."""
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(listings.requests_of(connection, run))


@router.get("/requests/{request}")
def get_request(request: str, shell: WithShell) -> Response:
    """Show how far a request has come."""
    with shell.db.read() as connection:
        if request.startswith(chores.PREFIX):
            return Answer(chores.shown(connection, request))
        if not (request.isascii() and request.isdecimal() and len(request) < 19):
            raise NotFoundError(f"there is no request {request!r}")
        return Answer(listings.request(connection, int(request)))


@router.post("/runs/{run}/restore-preview")
def preview_restore(run: str, body: bodies.RestoreArgs, shell: WithShell) -> Response:
    """Tell what a restore would lose and what would differ; nothing is changed."""
    snapshot = _check_restore(shell, run, body)
    args = body.model_dump(mode="json", exclude_none=True)
    with shell.db.read() as connection:
        return Answer(preview.restore(connection, snapshot, args, now=shell.clock.now()))
