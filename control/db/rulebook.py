"""Rules in SQL: versioned, never deleted, each change with who and why."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, and_, func, insert, or_, select, update

from control.db import history, tables
from control.db.sql.values import instant_text
from control.rules import packs
from trainmaster.errors import ConflictError, NotFoundError
from trainmaster.rule import Rule

log = logging.getLogger(__name__)

_TOLD: set[tuple[str, int]] = set()
"""Versions of rules of which it was said that they cannot be read."""

DEFAULT_PACK = "default"
SEEDER = "control"
"""Who puts the packs in, and renews what no person has touched."""


def seed(connection: Connection, rules: Iterable[Rule], *, pack: str, now: datetime) -> int:
    """Add the rules of a pack that were never there, and renew those that nobody has touched;
    return how many. Edited and removed ones stay as they are.
    """
    c, v = tables.rules.c, tables.rule_versions.c
    found = connection.execute(select(c.name, c.version, c.body, c.removed)).all()
    known = {row.name: row for row in found}
    touched = set(connection.scalars(select(v.name).where(v.actor != SEEDER)))
    why = f"{pack} pack"
    new: list[Rule] = []
    renewed = 0
    for rule in rules:
        before = known.get(rule.name)
        if before is None:
            new.append(rule)
        elif not (rule.name in touched or before.removed or before.body == rule.to_json()):
            _change(
                connection, rule.name, before.version, rule.to_json(), "edited", SEEDER, why, now
            )
            renewed += 1
    if new:
        add(connection, new, pack=pack, actor=SEEDER, why=why, now=now)
    elif renewed:
        _look_again(connection, now)
    return len(new) + renewed


Stamp = tuple[int, int, datetime | None]
"""Rules that there are or were, the sum of their versions, and when one was last changed: another
after each change, also where a database was put back to an earlier state.
"""

MAX_KEPT = 64
"""Choices of rules that are kept: runs mostly ask for the same."""


class Kept:
    """What was read of the rulebook, as long as nothing in it changes."""

    def __init__(self) -> None:
        self._stamp: Stamp | None = None
        self._active: OrderedDict[tuple[str, ...], tuple[Rule, ...]] = OrderedDict()

    def active(self, connection: Connection, asked: str | Sequence[str]) -> tuple[Rule, ...]:
        """As `active`; the very same rules again where none has changed."""
        c = tables.rules.c
        counted = select(func.count(), func.sum(c.version), func.max(c.changed_at))
        number, versions_, changed_at = connection.execute(counted).one()
        stamp = (number, versions_ or 0, changed_at)
        if stamp != self._stamp:
            self._stamp = stamp
            self._active.clear()
        key = (asked,) if isinstance(asked, str) else tuple(asked)
        if key not in self._active:
            self._active[key] = active(connection, key)
        self._active.move_to_end(key)
        if len(self._active) > MAX_KEPT:
            self._active.popitem(last=False)
        return self._active[key]


def active(connection: Connection, asked: str | Sequence[str]) -> tuple[Rule, ...]:
    """Return the enabled rules that a spec's `rules` asks for: names of packs, of rules, or
    both.
    """
    names = [asked] if isinstance(asked, str) else list(asked)
    c = tables.rules.c
    rows = connection.execute(
        select(c.name, c.version, c.body)
        .where(c.removed.is_(False), or_(c.pack.in_(names), c.name.in_(names)))
        .order_by(c.name)
    )
    rules = (_read(row.name, row.version, row.body) for row in rows)
    return tuple(rule for rule in rules if rule is not None and rule.enabled)


def _read(name: str, version: int, body: Any) -> Rule | None:
    """Return a stored rule; None where it says what this process does not know: it was written by a
    newer release, or a third party's part of it is not installed here. The others must go on. One
    from before a rule that may act needed an action has only ever warned, and goes on to.
    """
    if body.get("mode") == "act" and not body.get("actions"):
        body = {**body, "mode": "observe"}
    try:
        return Rule.model_validate(body)
    except ValidationError as error:
        if (name, version) not in _TOLD:
            _TOLD.add((name, version))
            why = "; ".join(each["msg"] for each in error.errors(include_url=False))
            log.error("the rule %r is left out, for it cannot be read here: %s", name, why)
        return None


def unknown(connection: Connection, asked: str | Sequence[str]) -> list[str]:
    """Return which of the names are neither a pack nor a rule."""
    names = [asked] if isinstance(asked, str) else list(asked)
    c = tables.rules.c
    rows = connection.execute(
        select(c.name, c.pack).where(
            c.removed.is_(False), or_(c.pack.in_(names), c.name.in_(names))
        )
    )
    known = {*packs.NAMES, *(word for row in rows for word in row)}
    return [name for name in names if name not in known]


def all_rules(connection: Connection) -> list[dict[str, Any]]:
    """Return every rule that is not removed, as the API shows it, oldest first."""
    c, v = tables.rules.c, tables.rule_versions.c
    rows = connection.execute(
        select(tables.rules)
        .join(tables.rule_versions, (v.name == c.name) & (v.version == 1))
        .where(c.removed.is_(False))
        .order_by(v.at, c.name)
    ).mappings()
    return [_shown(row) for row in rows]


def one(connection: Connection, name: str) -> dict[str, Any]:
    """Return one rule as the API shows it.

    Raises:
        NotFoundError: there is none of that name.
    """
    return _shown(_row(connection, name))


def add(
    connection: Connection, rules: Sequence[Rule], *, pack: str, actor: str, why: str, now: datetime
) -> list[dict[str, Any]]:
    """Add rules, or bring back removed ones of their names; return them as the API shows them.

    Raises:
        ConflictError: there is one of the name of one of them.

    Cost: a few statements for all that are new, and a few for each that is brought back.
    """
    names = [rule.name for rule in rules]
    c = tables.rules.c
    rows = connection.execute(select(c.name, c.version, c.removed).where(c.name.in_(names)))
    before = {row.name: row for row in rows}
    taken = next((name for name in names if name in before and not before[name].removed), None)
    if taken is not None:
        raise ConflictError(
            f"there is a rule named {taken!r} already: edit it, or choose another name"
        )
    new = [rule for rule in rules if rule.name not in before]
    if new:
        bodies = [{"name": rule.name, "version": 1, "body": rule.to_json()} for rule in new]
        shared = {"pack": pack, "changed_at": now, "changed_by": actor, "removed": False}
        connection.execute(insert(tables.rules), [body | shared for body in bodies])
        told = {"change": "added", "at": now, "actor": actor, "why": why}
        connection.execute(insert(tables.rule_versions), [body | told for body in bodies])
        entries = [{"target": f"rule {rule.name}", "data": {"version": 1}} for rule in new]
        said = {"at": now, "actor": actor, "action": "rule_added", "why": why}
        connection.execute(insert(tables.audit), [entry | said for entry in entries])
    for rule in rules:
        if rule.name in before:
            version, body = before[rule.name].version, rule.to_json()
            _change(
                connection,
                rule.name,
                version,
                body,
                "added",
                actor,
                why,
                now,
                pack=pack,
                removed=False,
            )
    _look_again(connection, now)
    stored = connection.execute(select(tables.rules).where(c.name.in_(names))).mappings()
    shown = {row["name"]: _shown(row) for row in stored}
    return [shown[name] for name in names]


def replace(
    connection: Connection,
    name: str,
    rule: Rule,
    *,
    expected_version: int | None,
    change: str,
    actor: str,
    why: str,
    now: datetime,
) -> dict[str, Any]:
    """Make `rule` the new version of the rule `name`.

    Raises:
        NotFoundError: there is none of that name.
        ConflictError: somebody else has changed it since `expected_version`.
    """
    version = _row(connection, name)["version"]
    if expected_version is not None and expected_version != version:
        raise ConflictError(
            f"rule {name!r} is at version {version} by now, not {expected_version}: look again"
        )
    _change(connection, name, version, rule.to_json(), change, actor, why, now)
    _look_again(connection, now)
    return one(connection, name)


def remove(connection: Connection, name: str, *, actor: str, why: str, now: datetime) -> None:
    """Take a rule out of use; its versions stay.

    Raises:
        NotFoundError: there is none of that name.
    """
    row = _row(connection, name)
    _change(connection, name, row["version"], row["body"], "removed", actor, why, now, removed=True)
    _look_again(connection, now)


def versions(connection: Connection, name: str) -> list[dict[str, Any]]:
    """Return all versions of a rule, oldest first.

    Raises:
        NotFoundError: there never was one of that name.
    """
    c = tables.rule_versions.c
    rows = (
        connection.execute(select(tables.rule_versions).where(c.name == name).order_by(c.version))
        .mappings()
        .all()
    )
    if not rows:
        raise NotFoundError(f"there is no rule named {name!r}")
    return [{**row, "at": instant_text(row["at"])} for row in rows]


def _row(connection: Connection, name: str) -> Any:
    c = tables.rules.c
    query = select(tables.rules).where(c.name == name, c.removed.is_(False))
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"there is no rule named {name!r}")
    return row


def _change(
    connection: Connection,
    name: str,
    version: int,
    body: dict[str, Any],
    change: str,
    actor: str,
    why: str,
    now: datetime,
    **values: Any,
) -> None:
    c = tables.rules.c
    changed = connection.execute(
        update(tables.rules)
        .where(and_(c.name == name, c.version == version))
        .values(version=version + 1, body=body, changed_at=now, changed_by=actor, **values)
    )
    if not changed.rowcount:
        raise ConflictError(f"rule {name!r} was changed by somebody else just now: look again")
    _remember(connection, name, version + 1, change, body, actor, why, now)


def _remember(
    connection: Connection,
    name: str,
    version: int,
    change: str,
    body: dict[str, Any],
    actor: str,
    why: str,
    now: datetime,
) -> None:
    connection.execute(
        insert(tables.rule_versions).values(
            name=name, version=version, change=change, body=body, at=now, actor=actor, why=why
        )
    )
    history.audit(
        connection,
        at=now,
        actor=actor,
        action=f"rule_{change}",
        target=f"rule {name}",
        why=why,
        data={"version": version},
    )


def _look_again(connection: Connection, now: datetime) -> None:
    """Have every run that may be watched by a changed rule judged by it in its next turn."""
    runs = tables.runs.c
    connection.execute(
        update(tables.runs)
        .where(runs.state.not_in(("succeeded", "failed", "stopped", "paused", "queued")))
        .values(touched=runs.touched + 1, next_look_at=now)
    )


def _shown(row: Any) -> dict[str, Any]:
    return {
        **row["body"],
        "version": row["version"],
        "pack": row["pack"],
        "changed_at": instant_text(row["changed_at"]),
        "changed_by": row["changed_by"],
    }
