"""Alerts from outside, as Alertmanager tells them: facts by fingerprint and beginning, however
often they are told. What they may do is asked for as a person would, and so answered and audited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from control.db import asking, history, tables
from control.db.asking import Ask
from control.db.sql.engine import Database
from control.db.sql.values import instant_text, plain
from control.settings import EXTERNAL_ACTIONS
from trainmaster.errors import ConflictError, NotFoundError

TRIES = 5

RUN_ACTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "checkpoint": ("checkpoint", {}),
    "hold": ("pause", {"hold": True}),
    "stop": ("stop", {"checkpoint": True}),
}
"""Action -> the kind of request that it is, and its arguments."""


@dataclass(frozen=True, slots=True)
class Told:
    """One alert of a message.

    Attributes:
        action: what it asks for by its label `trainmaster_action`; "" for nothing.
    """

    fingerprint: str
    starts_at: datetime
    ends_at: datetime | None
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    action: str = ""

    @property
    def sentence(self) -> str:
        """What it says."""
        told = self.annotations.get("summary") or self.annotations.get("description") or ""
        return f"{self.name}: {told}" if told else self.name


def receive(
    db: Database, message: Sequence[Told], *, allowed: Collection[str], actor: str, now: datetime
) -> list[str]:
    """Store the alerts of a message, all or none; return what became of each.

    Alertmanager hands the same message to every control plane at once. Whoever comes second finds
    what the first has written: a refusal would be taken for a failure there.

    Args:
        allowed: the actions that alerts from outside may carry here.

    Raises:
        ConflictError: others are faster, time and again.
        DatabaseError: the database cannot do this now.
    """
    for _ in range(TRIES - 1):
        try:
            return _receive(db, message, allowed, actor, now)
        except ConflictError:
            continue
    return _receive(db, message, allowed, actor, now)


def _receive(
    db: Database, message: Sequence[Told], allowed: Collection[str], actor: str, now: datetime
) -> list[str]:
    with db.write() as connection:
        return [store(connection, told, allowed=allowed, actor=actor, now=now) for told in message]


def store(
    connection: Connection, told: Told, *, allowed: Collection[str], actor: str, now: datetime
) -> str:
    """Store one alert, new or told again, and ask for what it carries; return what became of it.

    Args:
        allowed: the actions that alerts from outside may carry here.
    """
    c = tables.external_alerts.c
    key = (c.fingerprint == told.fingerprint) & (c.starts_at == told.starts_at)
    before = connection.execute(
        select(c.id, c.state, c.run).where(key).with_for_update()
    ).one_or_none()
    if before is not None:
        if told.ends_at is None or before.state == "resolved":
            return "known"
        connection.execute(
            update(tables.external_alerts)
            .where(key)
            .values(state="resolved", ends_at=told.ends_at, changed_at=now)
        )
        _tell(connection, "external_alert_resolved", told, before.run, actor, now)
        return "resolved"
    run = _known(connection, tables.runs.c.id, told.labels.get("run"))
    node = _known(connection, tables.nodes.c.id, told.labels.get("node"))
    state = "firing" if told.ends_at is None else "resolved"
    outcome = ""
    if state == "firing" and told.action:
        outcome = _act(connection, told, run, node, allowed=allowed, actor=actor, now=now)
    connection.execute(
        insert(tables.external_alerts).values(
            fingerprint=told.fingerprint,
            starts_at=told.starts_at,
            ends_at=told.ends_at,
            name=told.name,
            state=state,
            severity=told.labels.get("severity", "warning")[:40],
            run=run,
            node=node,
            labels=plain(told.labels),
            annotations=plain(told.annotations),
            action=told.action,
            outcome=outcome,
            received_at=now,
            changed_at=now,
        )
    )
    _tell(connection, f"external_alert_{state}", told, run, actor, now, outcome=outcome)
    return outcome or "stored"


def _known(connection: Connection, column: Any, value: str | None) -> str | None:
    if value is None:
        return None
    found: str | None = connection.scalar(select(column).where(column == value))
    return found


def _act(
    connection: Connection,
    told: Told,
    run: str | None,
    node: str | None,
    *,
    allowed: Collection[str],
    actor: str,
    now: datetime,
) -> str:
    if told.action not in EXTERNAL_ACTIONS:
        return f"not done: {told.action!r} is none of {', '.join(sorted(EXTERNAL_ACTIONS))}"
    if told.action not in allowed:
        return (
            f"not done: {told.action} is not among the actions that alerts from outside may carry "
            "here (TRAINMASTER_EXTERNAL_ACTIONS)"
        )
    if told.action == "cordon":
        if node is None:
            return "not done: no label `node` names a node that is known here"
        asking.set_cordoned(
            connection, node, cordoned=True, actor=actor, why=told.sentence, now=now
        )
        return f"cordoned node {node}"
    if run is None:
        return "not done: no label `run` names a run that is known here"
    kind, args = RUN_ACTIONS[told.action]
    key = f"alertmanager:{told.fingerprint}:{told.starts_at.isoformat()}"
    try:
        request = asking.ask(
            connection, run, Ask(kind, args, actor, told.sentence, key[:200]), now=now
        )
    except (ConflictError, NotFoundError) as error:
        return f"not done: {error.message}"
    return f"asked for: {told.action} (request {request})"


def _tell(
    connection: Connection,
    kind: str,
    told: Told,
    run: str | None,
    actor: str,
    now: datetime,
    **data: Any,
) -> None:
    if run is None:
        return
    history.touch_all(connection, [run], now)
    history.record(
        connection,
        at=now,
        run=run,
        kind=kind,
        actor=actor,
        because=told.sentence,
        data={"alert": told.name, "fingerprint": told.fingerprint, **data},
    )


def listed(
    connection: Connection, *, run: str | None = None, state: str | None = None
) -> list[dict[str, Any]]:
    """Return alerts from outside in the form of our own, oldest first."""
    c = tables.external_alerts.c
    query = select(tables.external_alerts).order_by(c.id)
    if run is not None:
        query = query.where(c.run == run)
    if state is not None:
        query = query.where(c.state == state)
    return [_shown(row) for row in connection.execute(query).mappings()]


def _shown(row: RowMapping) -> dict[str, Any]:
    return {
        "id": f"x{row['id']}",
        "source": "external",
        "rule": row["name"],
        "run": row["run"],
        "node": row["node"],
        "scope": f"node {row['node']}" if row["node"] else "run",
        "state": row["state"],
        "value": None,
        "threshold": None,
        "first_bad_step": None,
        "since": instant_text(row["starts_at"]),
        "changed_at": instant_text(row["changed_at"]),
        "severity": row["severity"],
        "incident": None,
        "silenced": False,
        "labels": row["labels"],
        "annotations": row["annotations"],
        "action": row["action"],
        "outcome": row["outcome"],
    }
