"""What people ask: submissions and requests become rows here, and nothing else; the reconciler
answers them.

The run's row is updated first (`touch`), so that of two people who ask at once one is first: the
second sees what the first has asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError as RowExistsError

from control.db import history, tables
from control.db.fleet import chores
from control.db.sql.values import plain
from control.lifecycle import refusal
from trainmaster.errors import ConflictError, NotFoundError, UserError
from trainmaster.spec import RunSpec

EXCLUSIVE = frozenset({"restore", "amend"})
"""While one of these is not applied, no other is taken: the second would undo the first unseen."""


class StateError(ConflictError):
    """The run's state does not allow what was asked."""

    code = "not_allowed_now"


class KeyReusedError(UserError):
    """The key has asked for something else before: nothing is done."""

    code = "key_reused"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody asks of a run.

    Attributes:
        key: the same key asks once, however often it is sent.
        expected_version: the version of the run that the person saw; None if they do not mind.
    """

    kind: str
    args: Mapping[str, Any]
    actor: str
    why: str = ""
    key: str | None = None
    expected_version: int | None = None


def submit(
    connection: Connection,
    spec: RunSpec,
    *,
    store: str,
    actor: str,
    key: str | None,
    now: datetime,
    bands_left: Sequence[str] = (),
) -> tuple[str, bool]:
    """Store a run; return its id, and whether it is new rather than asked for before under the same
    key.

    Args:
        store: URL of the folder below which its checkpoints are to be kept.

    Raises:
        KeyReusedError: the key has submitted another spec.
    """
    before = _submitted(connection, key, spec)
    if before is not None:
        return before, False
    run = "r" + secrets.token_hex(5)
    local = spec.checkpoint.local
    args = chores.workload_args(spec.workload, spec.params, spec.data.source)
    row = {
        "id": run,
        "name": spec.name,
        "state": "queued",
        "state_since": now,
        "desired": "running",
        "generation": 0,
        "version": 1,
        "priority": spec.priority,
        "spec": spec.model_dump(mode="json"),
        "workload_key": chores.digest(args),
        "checkpoint_root": f"{(local or store).rstrip('/')}/{run}",
        "copy_root": f"{store.rstrip('/')}/{run}" if local else None,
        "created_at": now,
        "created_by": actor,
        "because": "Submitted just now.",
        "next_look_at": now,
        "touched": 0,
        "idempotency_key": key,
    }
    try:
        with connection.begin_nested():
            connection.execute(insert(tables.runs).values(row))
    except RowExistsError:
        # Asked at two control planes at once, since the first was slow to answer.
        before = _submitted(connection, key, spec)
        if before is None:
            raise
        return before, False
    history.record(
        connection,
        at=now,
        run=run,
        kind="run_submitted",
        actor=actor,
        because=" ".join([f"Submitted by {actor}.", *bands_left]),
        data={"bands_left": list(bands_left)},
    )
    history.audit(
        connection,
        at=now,
        actor=actor,
        action="run_submitted",
        target=run,
        data={"name": spec.name},
    )
    return run, True


def _submitted(connection: Connection, key: str | None, spec: RunSpec) -> str | None:
    """Return the run that was submitted under `key` before.

    Raises:
        KeyReusedError: with another spec.
    """
    if key is None:
        return None
    r, q = tables.runs.c, tables.requests.c
    before = connection.execute(select(r.id, r.spec).where(r.idempotency_key == key)).one_or_none()
    if before is None:
        return None
    if before.spec != spec.model_dump(mode="json"):
        amended = select(q.id).where(q.run == before.id, q.kind == "amend").limit(1)
        if connection.scalar(amended) is None:
            raise KeyReusedError(
                f"this idempotency key has submitted run {before.id}, with another spec: "
                "use a new key"
            )
    return str(before.id)


def repeated(connection: Connection, run: str, key: str | None) -> int | None:
    """Return the request of `run` that was made under `key` before."""
    if key is None:
        return None
    c = tables.requests.c
    return connection.scalar(select(c.id).where(c.run == run, c.idempotency_key == key))


def ask(connection: Connection, run: str, asked: Ask, *, now: datetime) -> int:
    """Store a request; return its id. The same key gives the same request.

    Raises:
        NotFoundError: there is no such run.
        ConflictError: the run is not what the person saw, its state does not allow it, or another
            request stands in the way.
    """
    if not history.touch_all(connection, [run], now):
        raise NotFoundError(f"there is no run {run!r}")
    before = repeated(connection, run, asked.key)
    if before is not None:
        return before
    r = tables.runs.c
    state, version = connection.execute(select(r.state, r.version).where(r.id == run)).one()
    _require_free(connection, run, asked.kind)
    because = refusal(state, asked.kind)
    if because is not None:
        raise StateError(because)
    if asked.expected_version is not None and asked.expected_version != version:
        raise ConflictError(
            f"the run has changed (version {version}, not {asked.expected_version}): look again, "
            "then decide",
            code="stale_version",
        )
    added = connection.execute(
        insert(tables.requests).values(
            run=run,
            kind=asked.kind,
            args=plain(asked.args),
            actor=asked.actor,
            why=asked.why,
            state="pending",
            because="",
            created_at=now,
            changed_at=now,
            idempotency_key=asked.key,
        )
    )
    assert added.inserted_primary_key is not None
    request = int(added.inserted_primary_key[0])
    history.record(
        connection,
        at=now,
        run=run,
        kind=f"{asked.kind}_requested",
        actor=asked.actor,
        because=asked.why,
        data={"request": request, "args": asked.args},
    )
    history.audit(
        connection,
        at=now,
        actor=asked.actor,
        action=f"{asked.kind}_requested",
        target=run,
        why=asked.why,
        data={"request": request, "args": asked.args},
    )
    return request


def _require_free(connection: Connection, run: str, kind: str) -> None:
    if kind not in EXCLUSIVE:
        return
    c = tables.requests.c
    other = connection.execute(
        select(c.id, c.kind, c.actor).where(
            c.run == run, c.kind.in_(EXCLUSIVE), c.state.in_(("pending", "accepted"))
        )
    ).first()
    if other is not None:
        raise ConflictError(
            f"{kind} is refused: a {other.kind} of this run, asked by {other.actor} (request "
            f"{other.id}), "
            "is still under way; wait until it is applied",
            code="request_under_way",
        )


def set_pinned(
    connection: Connection, checkpoint: str, *, pinned: bool, actor: str, now: datetime
) -> None:
    """Keep a checkpoint from retirement, or let retention decide again.

    Raises:
        NotFoundError: there is none with this id.
        ConflictError: its bytes are gone.
    """
    c = tables.checkpoints.c
    row = connection.execute(select(c.run, c.state).where(c.id == checkpoint)).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no checkpoint {checkpoint}")
    history.touch_all(connection, [row.run], now)
    change = tables.checkpoints.update().where(c.id == checkpoint, c.state != "retired")
    if not connection.execute(change.values(pinned=pinned)).rowcount:
        raise ConflictError(f"checkpoint {checkpoint} is retired: its bytes are gone")
    action = "checkpoint_pinned" if pinned else "checkpoint_unpinned"
    history.audit(connection, at=now, actor=actor, action=action, target=checkpoint)


def set_cordoned(
    connection: Connection, node: str, *, cordoned: bool, actor: str, why: str, now: datetime
) -> None:
    """Give a node no new ranks, or give it some again; ranks that run there go on.

    Raises:
        NotFoundError: no node of that name was ever heard.
    """
    n, r = tables.nodes.c, tables.runs.c
    if not connection.execute(
        tables.nodes.update()
        .where(n.id == node)
        .values(cordoned=cordoned, cordoned_because=why if cordoned else "")
    ).rowcount:
        raise NotFoundError(f"there is no node {node!r}")
    action = "node_cordoned" if cordoned else "node_uncordoned"
    history.record(connection, at=now, kind=action, actor=actor, because=why, data={"node": node})
    history.audit(connection, at=now, actor=actor, action=action, target=node, why=why)
    connection.execute(
        tables.runs.update()
        .where(r.state.in_(("queued", "recovering")))
        .values(touched=r.touched + 1, next_look_at=now)
    )
