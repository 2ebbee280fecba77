"""What Prometheus reads of this control plane itself: whether it leads, what its loop and its
periodic work come to, what it stores of nodes' syncs, and how long others wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from sqlalchemy import ColumnElement, Connection, Table, func, select

from control.db import outbox, tables
from control.db.sql.faults import Faults
from control.vitals import Vitals

NOTICE_STATES: Final = ("pending", "sent", "failed", "unsent")


@dataclass(frozen=True, slots=True)
class Process:
    """This process at the moment of a scrape.

    Attributes:
        up_since: since when it has been hearing nodes.
        skipped: how often periodic work was due while it still ran.
        syncs: what became of nodes' syncs: groups, members, refused, retried, rows.
        syncs_waiting: how many wait for their group.
    """

    up_since: datetime
    skipped: int = 0
    leads: bool = False
    vitals: Vitals = field(default_factory=Vitals)
    syncs: Mapping[str, int] = field(default_factory=dict)
    syncs_waiting: int = 0


def families(process: Process, faults: Faults) -> Iterator[Metric]:
    """Yield what this process knows of itself."""
    yield _gauge(
        "trainmaster_control_start_time_seconds",
        "When this control plane started.",
        process.up_since.timestamp(),
    )
    yield _gauge(
        "trainmaster_control_leads",
        "1 where this control plane does the periodic work.",
        float(process.leads),
    )
    yield from _loop(process)
    yield from _syncs(process)
    errors = CounterMetricFamily(
        "trainmaster_control_database_errors",
        "How often the database could not do what this process asked.",
        labels=["kind"],
    )
    for kind, count in faults.counts().items():
        errors.add_metric([kind], count)
    yield errors


def _loop(process: Process) -> Iterator[Metric]:
    turns = CounterMetricFamily(
        "trainmaster_control_turns",
        "Turns of runs by how they ended; label `outcome`.",
        labels=["outcome"],
    )
    for outcome, count in process.vitals.turns().items():
        turns.add_metric([outcome], count)
    yield turns
    taken = HistogramMetricFamily(
        "trainmaster_control_turn_duration_seconds",
        "From reading a run to having written what was decided.",
    )
    taken.add_metric([], *process.vitals.turn_buckets())
    yield taken
    ended = CounterMetricFamily(
        "trainmaster_control_work",
        "Pieces of periodic work by how they ended; labels `work`, `outcome`.",
        labels=["work", "outcome"],
    )
    seconds = CounterMetricFamily(
        "trainmaster_control_work_seconds",
        "Time spent in periodic work; label `work`.",
        labels=["work"],
    )
    for name, work in process.vitals.works().items():
        for ending, count in work.ended.items():
            ended.add_metric([name, ending], count)
        seconds.add_metric([name], work.seconds)
    yield from (ended, seconds)
    yield _counter(
        "trainmaster_scheduler_skipped",
        "How often periodic work was due while it still ran.",
        process.skipped,
    )


def _syncs(process: Process) -> Iterator[Metric]:
    counts = process.syncs
    yield _counter(
        "trainmaster_control_syncs",
        "Syncs of nodes that were stored.",
        counts.get("members", 0),
    )
    yield _counter(
        "trainmaster_control_syncs_refused",
        "Syncs whose token had ended by the time they were to be stored.",
        counts.get("refused", 0),
    )
    yield _counter(
        "trainmaster_control_sync_groups",
        "Transactions in which syncs were stored together.",
        counts.get("groups", 0),
    )
    yield _counter(
        "trainmaster_control_sync_groups_retried",
        "Groups of syncs that failed and were tried one by one.",
        counts.get("retried", 0),
    )
    yield _counter(
        "trainmaster_control_sample_rows",
        "Sample rows that were stored, one per rank and step.",
        counts.get("rows", 0),
    )
    yield _gauge(
        "trainmaster_control_syncs_waiting",
        "Syncs that wait for their transaction.",
        process.syncs_waiting,
    )


def queues(connection: Connection, *, now: datetime) -> Iterator[Metric]:
    """Yield how much waits, and for how long: runs for their turn, requests for their answer,
    chores for a node, notices for their channel.
    """
    runs, requests, chores = tables.runs.c, tables.requests.c, tables.chores.c
    states, notice_age_s = outbox.counts(connection, now=now)
    waits = {
        "turns": _waiting(connection, tables.runs, runs.next_look_at <= now, runs.next_look_at),
        "requests": _waiting(
            connection, tables.requests, requests.state == "pending", requests.created_at
        ),
        "chores": _waiting(connection, tables.chores, chores.state != "done", chores.created_at),
    }
    length = GaugeMetricFamily(
        "trainmaster_queue_length",
        "What waits for the control plane; label `queue`: turns, requests, chores, notifications.",
        labels=["queue"],
    )
    age = GaugeMetricFamily(
        "trainmaster_queue_oldest_seconds",
        "For how long the oldest of them has been waiting; label `queue`.",
        labels=["queue"],
    )
    for name, (count, since) in waits.items():
        length.add_metric([name], count)
        age.add_metric([name], 0.0 if since is None else max(0.0, (now - since).total_seconds()))
    length.add_metric(["notifications"], states.get("pending", 0))
    age.add_metric(["notifications"], notice_age_s)
    yield from (length, age)
    notices = GaugeMetricFamily(
        "trainmaster_notifications",
        "Notices of the last 30 days by how far they have come; label `state`.",
        labels=["state"],
    )
    for state in NOTICE_STATES:
        notices.add_metric([state], states.get(state, 0))
    yield notices


def _waiting(
    connection: Connection, table: Table, waits: ColumnElement[bool], since: ColumnElement[datetime]
) -> tuple[int, datetime | None]:
    query = select(func.count(), func.min(since)).select_from(table).where(waits)
    count, oldest = connection.execute(query).one()
    return count, oldest


def _counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
