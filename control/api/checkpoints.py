"""Checkpoints: show, pin, have their bytes read, and tell which would go."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from control import retention
from control.api.answers import Answer
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.auth import Caller
from control.db import asking, chores, fleet, history, listings
from control.db.load import load
from control.liveness import node_state
from control.turn import Turn
from trainmaster.errors import ConflictError, NotFoundError, UnavailableError

router = APIRouter(prefix="/v1", route_class=DoorRoute, tags=["checkpoints"])


@router.get("/checkpoints/{checkpoint}")
def get_checkpoint(checkpoint: str, shell: WithShell) -> Response:
    """Show one checkpoint."""
    with shell.db.read() as connection:
        return Answer(listings.checkpoint(connection, checkpoint))


@router.post("/checkpoints/{checkpoint}/pin")
def pin(checkpoint: str, shell: WithShell, caller: ByCaller) -> Response:
    """Keep a checkpoint from retirement."""
    return _set_pinned(shell, checkpoint, caller, pinned=True)


@router.post("/checkpoints/{checkpoint}/unpin")
def unpin(checkpoint: str, shell: WithShell, caller: ByCaller) -> Response:
    """Let retention decide about a checkpoint again."""
    return _set_pinned(shell, checkpoint, caller, pinned=False)


@router.get("/runs/{run}/retention")
def get_retention(run: str, shell: WithShell) -> Response:
    """Tell of each checkpoint that is not retired whether it would go now, and why; nothing is
    changed.
    """
    now = shell.clock.now()
    with shell.db.read() as connection:
        loaded = load(connection, run, now=now, control_up_since=shell.up_since)
    if loaded is None:
        raise NotFoundError(f"there is no run {run}")
    return Answer(
        [
            {
                "checkpoint": verdict.checkpoint.id,
                "step": verdict.checkpoint.step,
                "generation": verdict.checkpoint.generation,
                "state": verdict.checkpoint.state,
                "goes": verdict.goes,
                "because": verdict.because,
            }
            for verdict in retention.verdicts(Turn(loaded.snapshot, now))
        ]
    )


def _set_pinned(shell: Shell, checkpoint: str, caller: Caller, *, pinned: bool) -> Response:
    with shell.db.write() as connection:
        asking.set_pinned(
            connection, checkpoint, pinned=pinned, actor=caller.actor, now=shell.clock.now()
        )
        return Answer(listings.checkpoint(connection, checkpoint))


@router.post("/checkpoints/{checkpoint}/verify")
def verify(checkpoint: str, shell: WithShell, caller: ByCaller) -> Response:
    """Have a node read the bytes; `GET /v1/requests/{id}` tells the result."""
    now = shell.clock.now()
    with shell.db.write() as connection:
        found = listings.checkpoint(connection, checkpoint)
        if found["state"] == "retired":
            raise ConflictError(f"checkpoint {checkpoint} is retired: its bytes are gone")
        nodes = fleet.read(connection, found["run"], now)
        if not any(node_state(node, now=now) == "present" for node in nodes):
            raise UnavailableError(
                "no node is connected that could read the checkpoint", code="no_node"
            )
        args = {
            "location": found["location"],
            "checkpoint": checkpoint,
            "manifest_sha256": found["manifest_sha256"],
        }
        chore = chores.ask(connection, "verify", args, now=now, run=found["run"])
        history.audit(
            connection, at=now, actor=caller.actor, action="verify_requested", target=checkpoint
        )
        return Answer(chores.shown(connection, f"{chores.PREFIX}{chore}"), status_code=202)
