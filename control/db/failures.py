"""How often the fleet has failed lately: what intervals between checkpoints are derived from."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from control.db import tables
from trainmaster.interval import mean_time_between_failures
from trainmaster.layout import nodes_of
from trainmaster.plan import Plan

SINCE = timedelta(days=30)
MOST_ATTEMPTS = 2000
FAILED = ("failed", "lost")


def expected_after_s(connection: Connection, plan: Plan, *, now: datetime) -> float:
    """Return after how many seconds an attempt of `plan` is to be expected to fail, by what all
    attempts begun within `SINCE` have met; the newest `MOST_ATTEMPTS` of them.
    """
    a, r = tables.attempts.c, tables.ranks.c
    newest = (
        select(a.run, a.generation, a.state, a.started_at, a.ended_at)
        .where(a.started_at > now - SINCE)
        .order_by(a.started_at.desc())
        .limit(MOST_ATTEMPTS)
        .subquery()
    )
    n = newest.c
    query = (
        select(n.state, n.started_at, n.ended_at, func.count(r.node.distinct()))
        .join(tables.ranks, (r.run == n.run) & (r.generation == n.generation))
        .group_by(n.run, n.generation, n.state, n.started_at, n.ended_at)
    )
    lives = [
        (max(0.0, ((ended_at or now) - started_at).total_seconds()), nodes, state in FAILED)
        for state, started_at, ended_at, nodes in connection.execute(query)
    ]
    return mean_time_between_failures(lives, num_nodes=len(set(nodes_of(plan))))
