"""What must hold in the database after a campaign, asked in SQL: each function returns what is
wrong, as sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from sqlalchemy import Connection, func, select, text

from control.db import tables
from control.db.samples import samples
from control.db.samples.segments import Segment
from tests.campaigns.light_node import NOTE, LightNode

ENDLESS = 2**53


def all_of(
    connection: Connection, nodes: Sequence[LightNode], epochs: Sequence[int]
) -> Iterator[str]:
    """Yield everything that is wrong."""
    yield from runs_not_succeeded(connection)
    yield from steps_not_once(connection, nodes)
    yield from events_not_once(connection, nodes)
    yield from values_changed(connection, nodes)
    yield from requests_not_once(connection)
    yield from slots_left(connection)
    yield from generations_at_once(connection, nodes)
    yield from judged_twice(connection)
    yield from epochs_not_rising(connection, epochs)


def runs_not_succeeded(connection: Connection) -> Iterator[str]:
    c = tables.runs.c
    for run, state, because in connection.execute(
        select(c.id, c.state, c.because).where(c.state != "succeeded")
    ):
        yield f"run {run} is {state}: {because}"


def steps_not_once(connection: Connection, nodes: Sequence[LightNode]) -> Iterator[str]:
    """Each step of each generation and rank is there once, and none is missing between its first
    and its last; where it is known what was told, exactly that is there.
    """
    stored = connection.execute(
        text(
            "SELECT run, generation, rank, sum(num_rows), min(first_step), max(last_step) FROM ("
            " SELECT run, generation, rank, num_rows, first_step, last_step FROM sample_chunks"
            " UNION ALL SELECT run, generation, rank, num_rows, first_step, last_step"
            " FROM sample_blocks WHERE metric = 'step') AS kept GROUP BY run, generation, rank"
        )
    ).all()
    for run, generation, rank, num_rows, first, last in stored:
        if num_rows != last - first + 1:
            yield f"{run}/{generation}/{rank}: {num_rows} rows for steps {first} to {last}"
    counts = {(row[0], row[1]): int(row[3]) for row in stored}
    ends = {(row[0], row[1]): (row[4], row[5]) for row in stored}
    for node in nodes:
        for key, attempt in node.attempts.items():
            told = [each.step for each in attempt.spool.frames if each.step is not None]
            if not told:
                continue
            if counts.get(key) != len(told) or ends.get(key) != (told[0], told[-1]):
                yield (
                    f"{node.name} told {key} {len(told)} steps, {told[0]} to {told[-1]}; stored "
                    f"are {counts.get(key)}, {ends.get(key)}"
                )
    a = tables.attempts.c
    for run, generation, begun, seen in connection.execute(
        select(a.run, a.generation, a.resumed_from_step, a.first_step)
    ):
        if seen is not None and seen != (begun or 0) + 1:
            yield f"{run}/{generation} began after step {begun}, and its first step is {seen}"


def values_changed(connection: Connection, nodes: Sequence[LightNode]) -> Iterator[str]:
    for node in nodes:
        for (run, generation), attempt in node.attempts.items():
            told = {
                each.step: each.values["loss"]
                for each in attempt.spool.frames
                if each.step is not None
            }
            found = samples.read(connection, run, "loss", [Segment(generation, 0, ENDLESS)])
            if dict(zip(found.steps.tolist(), found.values.tolist(), strict=True)) != told:
                yield f"the losses of {run}/{generation} are not those that {node.name} told"


def events_not_once(connection: Connection, nodes: Sequence[LightNode]) -> Iterator[str]:
    e = tables.events.c
    for node in nodes:
        actors = (f"agent {node.name}", f"rank 0 on {node.name}")
        stored = Counter[str]()
        numbers = Counter[int]()
        for kind, data in connection.execute(select(e.kind, e.data).where(e.actor.in_(actors))):
            stored[kind] += 1
            if kind == NOTE:
                numbers[data["number"]] += 1
        if stored != node.told():
            yield f"{node.name} told {dict(node.told())}; stored are {dict(stored)}"
        twice = [number for number, count in numbers.items() if count > 1]
        if twice:
            yield f"{node.name}: notes {twice[:5]} are there more than once"


def requests_not_once(connection: Connection) -> Iterator[str]:
    r, o = tables.requests.c, tables.orders.c
    for request, state in connection.execute(
        select(r.id, r.state).where(r.state.not_in(("applied", "refused")))
    ):
        yield f"request {request} is still {state}"
    for request, count in connection.execute(
        select(o.request, func.count())
        .where(o.request.is_not(None), o.state == "applied")
        .group_by(o.request)
        .having(func.count() > 1)
    ):
        yield f"request {request} was applied by the ranks {count} times"
    yield from restores_not_once(connection)
    for kind in ("request_applied", "request_refused"):
        for request, count in connection.execute(
            text(
                "SELECT data->>'request', count(*) FROM events WHERE kind = :kind"
                " GROUP BY 1 HAVING count(*) > 1"
            ),
            {"kind": kind},
        ):
            yield f"{kind} is told {count} times of request {request}"
    for run, key, count in connection.execute(
        select(r.run, r.idempotency_key, func.count())
        .where(r.idempotency_key.is_not(None))
        .group_by(r.run, r.idempotency_key)
        .having(func.count() > 1)
    ):
        yield f"{count} requests of {run} have the key {key}"


def restores_not_once(connection: Connection) -> Iterator[str]:
    """Each attempt that began by a restore was asked for by one request, and each request that was
    applied began one. (One that a pause overtook may have begun an attempt and be refused.)
    """
    r, a = tables.requests.c, tables.attempts.c
    asked = connection.execute(
        select(r.run, r.generation, r.state).where(r.kind == "restore", r.generation.is_not(None))
    ).all()
    begun = {
        (run, generation)
        for run, generation in connection.execute(
            select(a.run, a.generation).where(a.cause_kind == "restore")
        )
    }
    named = Counter((run, generation) for run, generation, _ in asked)
    for key in begun:
        if named[key] != 1:
            yield f"attempt {key} began by a restore that {named[key]} requests asked for"
    for run, generation, state in asked:
        if state == "applied" and (run, generation) not in begun:
            yield f"a restore of {run} is told as applied, and generation {generation} is none"


def slots_left(connection: Connection) -> Iterator[str]:
    for row in connection.execute(select(tables.slots)):
        yield f"a slot is still held: {tuple(row)}"
    a = tables.attempts.c
    for run, generation in connection.execute(
        select(a.run, a.generation).where(a.ended_at.is_(None))
    ):
        yield f"attempt {run}/{generation} has not ended"


def generations_at_once(connection: Connection, nodes: Sequence[LightNode]) -> Iterator[str]:
    """No generation trained while an earlier one of its run still did: by the nodes' own word."""
    spans: dict[str, list[tuple[int, datetime, datetime]]] = {}
    for node in nodes:
        for (run, generation), attempt in node.attempts.items():
            if attempt.began_at is not None and attempt.ended_at is not None:
                span = (generation, attempt.began_at, attempt.ended_at)
                spans.setdefault(run, []).append(span)
    e, r = tables.events.c, tables.ranks.c
    light = {key for node in nodes for key in node.attempts}
    started = connection.execute(
        select(e.run, e.generation, func.min(e.at))
        .where(e.kind == "rank_started")
        .group_by(e.run, e.generation)
    ).all()
    ended = {
        (run, generation): at
        for run, generation, at in connection.execute(
            select(r.run, r.generation, func.max(r.exited_at)).group_by(r.run, r.generation)
        )
    }
    for run, generation, began in started:
        at = ended.get((run, generation))
        if (run, generation) not in light and at is not None:
            spans.setdefault(run, []).append((generation, began, at))
    for run, found in spans.items():
        found.sort()
        for (one, _, ended_at), (other, began_at, _) in pairwise(found):
            if began_at < ended_at:
                yield f"{run}: generation {other} began at {began_at}, {one} ended at {ended_at}"


def judged_twice(connection: Connection) -> Iterator[str]:
    a, i = tables.alerts.c, tables.incidents.c
    alerts = (a.run, a.rule, a.scope, a.generation, a.first_bad_step)
    for row in connection.execute(
        select(*alerts, func.count()).group_by(*alerts).having(func.count() > 1)
    ):
        yield f"an alert is there more than once: {tuple(row)}"
    incidents = (i.run, i.rule, i.opened_at)
    for row in connection.execute(
        select(*incidents, func.count()).group_by(*incidents).having(func.count() > 1)
    ):
        yield f"an incident is there more than once: {tuple(row)}"
    for run, count in connection.execute(
        select(i.run, func.count()).where(i.closed_at.is_(None)).group_by(i.run)
    ):
        yield f"{count} incidents of {run}, which has ended, are open"


def epochs_not_rising(connection: Connection, epochs: Sequence[int]) -> Iterator[str]:
    """Each term had a number of its own, and the newest has the highest."""
    if len(set(epochs)) != len(epochs):
        yield f"two terms had one epoch: {sorted(epochs)}"
    stored = connection.scalar(select(tables.leadership.c.epoch))
    if epochs and stored != max(epochs):
        yield f"the stored epoch is {stored}, the highest that anybody led with {max(epochs)}"
