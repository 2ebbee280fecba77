"""What Prometheus reads here: runs, nodes and this process, as rows say at the moment of the
scrape.

Per-rank series are the agents' (`worker.agent.exporter`); this exports what only the control plane
knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from sqlalchemy import Connection, func, or_, select

from control.db import listings, tables
from control.db.accounts import Accounts
from control.db.sql.engine import Database
from control.db.sql.faults import UnreadableError
from control.goodput import BUCKETS
from control.lifecycle import TERMINAL, State
from control.prometheus import process_metrics
from control.prometheus.process_metrics import Process
from control.recovery.recoveries import percentile

KEEP_ENDED = timedelta(seconds=15)
"""For how long a run is exported after its end."""


def exposition(
    db: Database, process: Process, *, now: datetime, accounts: Accounts, accept: str = ""
) -> tuple[bytes, str]:
    """Return the text that Prometheus reads, and its content type.

    Args:
        accept: what the scraper can read, as its header says: OpenMetrics, or the older text.
    """
    registry = CollectorRegistry(auto_describe=False)
    with db.read() as connection:
        families = list(_families(connection, now, process.up_since))
        families += process_metrics.queues(connection, now=now)
        families += _accounts(connection, accounts, now)
    families += process_metrics.families(process, db.faults)
    registry.register(_Ready(families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Ready:
    """A collector of what was read before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(connection: Connection, now: datetime, up_since: datetime) -> Iterator[Metric]:
    yield from _runs(connection, now)
    yield from _nodes(connection, now, up_since)


def _runs(connection: Connection, now: datetime) -> Iterator[Metric]:
    r = tables.runs.c
    shown = or_(r.ended_at.is_(None), r.ended_at > now - KEEP_ENDED)
    rows = connection.execute(select(r.id, r.state, r.generation).where(shown).order_by(r.id)).all()
    a = tables.attempts.c
    counted = select(a.run, func.count()).where(a.run.in_([row.id for row in rows]))
    # Numbers of generations may leap (`control.db.restored`).
    attempts: dict[str, int] = dict(connection.execute(counted.group_by(a.run)).all())
    state = GaugeMetricFamily(
        "trainmaster_run_state", "1 for the state that the run is in.", labels=["run", "state"]
    )
    restarts = CounterMetricFamily(
        "trainmaster_restarts", "Generations that the run began after its first.", labels=["run"]
    )
    generation = GaugeMetricFamily(
        "trainmaster_run_generation", "The run's generation.", labels=["run"]
    )
    for row in rows:
        for each in State:
            state.add_metric([row.id, str(each)], float(row.state == each))
        restarts.add_metric([row.id], max(0, attempts.get(row.id, 0) - 1))
        generation.add_metric([row.id], row.generation)
    yield from (state, restarts, generation)
    yield _checkpoint_ages(connection, [row.id for row in rows if row.state not in TERMINAL], now)
    yield _counts(connection)
    yield _alerts(connection)


def _accounts(connection: Connection, accounts: Accounts, now: datetime) -> Iterator[Metric]:
    """Tell where the time of runs goes; one that cannot be read is left out here."""
    r = tables.runs.c
    shown = or_(r.ended_at.is_(None), r.ended_at > now - KEEP_ENDED)
    spent = CounterMetricFamily(
        "trainmaster_goodput_seconds",
        "Wall time of the run by what it was spent on; the buckets sum to all of it.",
        labels=["run", "bucket"],
    )
    ratio = GaugeMetricFamily(
        "trainmaster_goodput_ratio", "Share of the wall time in steps that count.", labels=["run"]
    )
    recoveries = CounterMetricFamily(
        "trainmaster_recoveries",
        "Attempts that the run began by itself, by what made it.",
        labels=["run", "cause"],
    )
    lost = CounterMetricFamily(
        "trainmaster_lost_steps", "Steps that were done and had to be done again.", labels=["run"]
    )
    repair = GaugeMetricFamily(
        "trainmaster_time_to_recovery_seconds",
        "From the last step before a failure to the first one after it, over all recoveries.",
        labels=["run", "quantile"],
    )
    for run in connection.scalars(select(r.id).where(shown).order_by(r.id)).all():
        try:
            found = accounts.of(connection, run, now=now)
        except UnreadableError:
            continue
        for bucket in BUCKETS:
            spent.add_metric([run, bucket.removesuffix("_s")], found.goodput[bucket])
        ratio.add_metric([run], found.goodput["productive_ratio"])
        for cause, count in sorted(found.recoveries.by_cause.items()):
            recoveries.add_metric([run, cause], count)
        lost.add_metric([run], found.recoveries.lost_steps)
        for share in (0.5, 0.95):
            seconds = percentile(found.recoveries.times_s, share)
            if seconds is not None:
                repair.add_metric([run, f"{share:g}"], seconds)
    yield from (spent, ratio, recoveries, lost, repair)


def _checkpoint_ages(connection: Connection, runs: list[str], now: datetime) -> Metric:
    c = tables.checkpoints.c
    age = GaugeMetricFamily(
        "trainmaster_checkpoint_age_seconds",
        "Time since the newest good checkpoint was committed.",
        labels=["run"],
    )
    newest = connection.execute(
        select(c.run, func.max(c.created_at))
        .where(c.run.in_(runs), c.state.in_(("committed", "trusted")), c.abandoned.is_(False))
        .group_by(c.run)
        .order_by(c.run)
    )
    for run, created_at in newest:
        age.add_metric([run], max(0.0, (now - created_at).total_seconds()))
    return age


def _counts(connection: Connection) -> Metric:
    c = tables.runs.c
    counted = select(c.state, func.count()).group_by(c.state)
    found: dict[str, int] = dict(connection.execute(counted).all())
    runs = GaugeMetricFamily("trainmaster_runs", "Runs by state.", labels=["state"])
    for each in State:
        runs.add_metric([str(each)], found.get(str(each), 0))
    return runs


def _alerts(connection: Connection) -> Metric:
    c = tables.alerts.c
    alerts = GaugeMetricFamily(
        "trainmaster_alerts", "Alerts that are pending or firing.", labels=["run", "state"]
    )
    found = connection.execute(
        select(c.run, c.state, func.count())
        .where(c.state.in_(("pending", "firing")))
        .group_by(c.run, c.state)
        .order_by(c.run, c.state)
    )
    for run, state, count in found:
        alerts.add_metric([run, state], count)
    return alerts


def _nodes(connection: Connection, now: datetime, up_since: datetime) -> Iterator[Metric]:
    nodes = listings.nodes(connection, now=now, up_since=up_since)
    info = GaugeMetricFamily(
        "trainmaster_node_info",
        "1 for each kind of device of a node.",
        labels=["node", "device_kind"],
    )
    seen = GaugeMetricFamily(
        "trainmaster_node_last_seen_seconds", "Time since the node's last sync.", labels=["node"]
    )
    slots = GaugeMetricFamily("trainmaster_node_slots", "Slots of the node.", labels=["node"])
    taken = GaugeMetricFamily(
        "trainmaster_node_slots_taken", "Slots of the node that runs hold.", labels=["node"]
    )
    present = GaugeMetricFamily(
        "trainmaster_node_state", "1 for the state that the node is in.", labels=["node", "state"]
    )
    for node in nodes:
        for kind in sorted({str(device.get("kind")) for device in node["devices"]}) or ["none"]:
            info.add_metric([node["id"], kind], 1)
        age_s = (now - datetime.fromisoformat(node["last_seen_at"])).total_seconds()
        seen.add_metric([node["id"]], max(0.0, age_s))
        slots.add_metric([node["id"]], node["slots"])
        taken.add_metric([node["id"]], len(node["taken"]))
        for state in ("present", "late", "lost"):
            present.add_metric([node["id"], state], float(node["state"] == state))
    yield from (info, seen, slots, taken, present)
