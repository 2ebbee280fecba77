"""Checkpoints: show, pin, have their bytes read and compared, and tell which would go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from sqlalchemy import Connection
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.checkpoints import retention
from control.db import asking, history, listings
from control.db.fleet import chores
from control.db.fleet import nodes as fleet
from control.db.load import load
from control.liveness.leases import node_state
from control.rights import Caller
from control.turn import Turn
from trainmaster.errors import ConflictError, NotFoundError, UnavailableError
from trainmaster.storage import MEMORY_SCHEME

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
        found = _with_bytes(connection, checkpoint)
        _refuse_without_node(connection, found["run"], now=now)
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


@router.post("/checkpoints/{checkpoint}/compare/{other}")
def compare(checkpoint: str, other: str, shell: WithShell, caller: ByCaller) -> Response:
    """Have a node tell how far the weights of two checkpoints lie apart: 202, or 200 with the
    answer where one has done so before.
    """
    now = shell.clock.now()
    with shell.db.write() as connection:
        both = [_with_bytes(connection, each) for each in (checkpoint, other)]
        args = _comparison_args(*both)
        before = chores.asked_before(connection, "compare", args)
        if before is not None and before.get("ok") is True:
            return Answer(before)
        _refuse_without_node(connection, both[0]["run"], now=now)
        chore = chores.ask(connection, "compare", args, now=now, run=both[0]["run"])
        history.audit(
            connection, at=now, actor=caller.actor, action="comparison_requested", target=checkpoint
        )
        return Answer(chores.shown(connection, f"{chores.PREFIX}{chore}"), status_code=202)


@router.get("/checkpoints/{checkpoint}/compare/{other}")
def get_comparison(checkpoint: str, other: str, shell: WithShell) -> Response:
    """Tell what a comparison found, or how far it is."""
    with shell.db.read() as connection:
        both = [listings.checkpoint(connection, each) for each in (checkpoint, other)]
        found = chores.asked_before(connection, "compare", _comparison_args(*both))
    if found is None:
        raise NotFoundError(f"nobody has asked to compare {checkpoint} with {other}")
    return Answer(found)


def _comparison_args(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node is to read."""
    return {
        "checkpoint": first["id"],
        "location": first["location"],
        "manifest_sha256": first["manifest_sha256"],
        "other": second["id"],
        "other_location": second["location"],
        "other_manifest_sha256": second["manifest_sha256"],
    }


def _with_bytes(connection: Connection, checkpoint: str) -> dict[str, Any]:
    """Return a checkpoint that a node can read.

    Raises:
        NotFoundError: there is none with this id.
        ConflictError: its bytes are gone, or lie in the memory of ranks alone.
    """
    found = listings.checkpoint(connection, checkpoint)
    if found["state"] == "retired":
        raise ConflictError(f"checkpoint {checkpoint} is retired: its bytes are gone")
    if found["location"].startswith(MEMORY_SCHEME):
        raise ConflictError(f"checkpoint {checkpoint} is kept in memory alone: only ranks read it")
    return found


def _refuse_without_node(connection: Connection, run: str, *, now: datetime) -> None:
    nodes = fleet.read(connection, run, now)
    if not any(node_state(node, now=now) == "present" for node in nodes):
        raise UnavailableError(
            "no node is connected that could read the checkpoint", code="no_node"
        )
