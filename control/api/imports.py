"""Imports: runs that come with their checkpoints."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import ByCaller, WithShell
from control.api.door import DoorRoute
from control.api.runs import shown
from control.api.submission import parsed
from control.db import adoption, rulebook
from trainmaster.checkpoint.adoption import Adoption
from trainmaster.errors import Problem, SpecError, UserError
from trainmaster.storage import url_problem

router = APIRouter(prefix="/v1/imports", route_class=DoorRoute, tags=["runs"])


@router.post("")
def adopt(body: Adoption, shell: WithShell, caller: ByCaller) -> Response:
    """Adopt a run: 201 with the run, stopped; a node describes its workload when it is resumed."""
    problem = url_problem(body.root)
    if problem is not None:
        raise UserError(f"root: {problem}")
    spec, _ = parsed(body.spec)
    with shell.db.write() as connection:
        unknown = rulebook.unknown(connection, spec.rules)
        if unknown:
            raise SpecError(
                [Problem("rules", f"there is no rule or pack named {name!r}") for name in unknown]
            )
        run = adoption.adopt(connection, body, spec, actor=caller.actor, now=shell.clock.now())
    return Answer(shown(shell, run), status_code=201)
