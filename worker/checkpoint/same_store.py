"""Whether all nodes of a run see the same store: proved before anything relies on it.

Rank 0 creates an object with a token; every other rank reads it. A folder that each machine has for
itself would otherwise take the parts of every checkpoint apart, and a store that lets an object be
created twice would let two checkpoints be one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from trainmaster.errors import ConflictError, UnavailableError, UserError
from trainmaster.storage import Storage
from worker.checkpoint.peers import Peers

PATIENCE_S: Final = 5.0
"""For how long an object may stay unseen: a network file system may remember for a while that a
folder was not there.
"""
_PAUSE_S: Final = 0.25


def prove_same_store(
    storage: Storage,
    peers: Peers,
    *,
    rank: int,
    nodes: Sequence[str | None],
    patience_s: float = PATIENCE_S,
) -> None:
    """Return once every rank has read what rank 0 wrote; a collective over all ranks.

    Args:
        nodes: where each rank runs.

    Raises:
        UserError: some do not see it, or the store lets an object be created twice. On all ranks
            alike.
        UnavailableError: rank 0 cannot write now, or another cannot read. On all ranks alike.
    """
    written = _begun(storage) if rank == 0 else None
    told = json.loads(peers.broadcast(json.dumps(written).encode() if rank == 0 else None))
    problem, kind = told["problem"], told["kind"]
    if problem is None:
        seen = _look(storage, told["path"], told["token"], patience_s)
        all_seen = [json.loads(data) for data in peers.gather(json.dumps(seen).encode())]
        verdict = _verdict(storage, all_seen, nodes) if rank == 0 else None
        problem, kind = json.loads(
            peers.broadcast(json.dumps(verdict).encode() if rank == 0 else None)
        )
    if rank == 0 and told["path"]:
        with suppress(OSError, UnavailableError):  # it is small, and retiring the run removes it
            storage.delete(told["path"])
    if problem is not None:
        raise (
            UserError(problem, code="not_the_same_store")
            if kind == "user"
            else UnavailableError(problem, code="storage_unavailable")
        )


def _begun(storage: Storage) -> dict[str, str | None]:
    token = secrets.token_hex(16)
    path = f"probe-{token}"
    try:
        storage.create(path, token.encode())
    except (OSError, UnavailableError) as error:
        return {"path": None, "token": None, "kind": "away", "problem": _away(storage, 0, error)}
    told: dict[str, str | None] = {"path": path, "token": token, "kind": None, "problem": None}
    try:
        storage.create(path, b"again")
    except ConflictError:
        return told
    except (OSError, UnavailableError) as error:
        return {**told, "kind": "away", "problem": _away(storage, 0, error)}
    problem = (
        f"{storage.url} lets an object be created twice: it does not know the condition "
        "If-None-Match, and is no store for checkpoints"
    )
    return {**told, "kind": "user", "problem": problem}


def _look(storage: Storage, path: str, token: str, patience_s: float) -> str | None:
    """Return None once the token is seen, "" if it stays unseen, else why it cannot be read."""
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            if storage.read(path, 0, 100) == token.encode():
                return None
            return ""
        except FileNotFoundError:
            if time.monotonic() >= give_up_at:
                return ""
            time.sleep(_PAUSE_S)
        except (OSError, UnavailableError) as error:
            return str(error)


def _verdict(
    storage: Storage, seen: Sequence[str | None], nodes: Sequence[str | None]
) -> tuple[str | None, str | None]:
    blind = sorted({str(nodes[rank]) for rank, said in enumerate(seen) if said == ""})
    if blind:
        because = (
            f"node {', '.join(blind)} does not see in {storage.url} what node {nodes[0]} has just "
            "written there: a run on several nodes needs one store for all. Mount the same folder "
            "under that path on each node, or use s3://bucket/prefix (checkpoint.store)"
        )
        return because, "user"
    away = [(rank, said) for rank, said in enumerate(seen) if said]
    if away:
        rank, said = away[0]
        return f"{storage.url} cannot be read on node {nodes[rank]} now: {said}", "away"
    return None, None


def _away(storage: Storage, rank: int, error: Exception) -> str:
    return f"{storage.url} cannot be written by rank {rank} now: {error}"
