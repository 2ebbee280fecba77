"""The panels of a run's page, from its series and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dashboard import states
from dashboard.charts import happenings
from dashboard.charts.axis import Axis, Window
from dashboard.charts.heat import heat_panel
from dashboard.charts.marks import Mark, alert_marks, generation_marks
from dashboard.charts.panels import Panel, rank_panel, run_panel, waiting_panel
from dashboard.charts.series import Series, lineage
from dashboard.charts.stack import stack_panel
from dashboard.data import Json
from dashboard.efficiency import mfu_factor
from dashboard.formats import number
from dashboard.session import Session
from dashboard.tails import Wanted
from trainmaster.metrics import BY_NAME, DERIVED

RUN_METRICS = ("loss", "grad_norm", "tokens_per_s", "lr")
STEP_TIME = "step_time_s"
PARTS = (
    "compute_s",
    "p2p_wait_s",
    "allreduce_s",
    "optimizer_s",
    "data_s",
    "checkpoint_stall_s",
)
RANK_METRICS = (
    "utilization_ratio",
    "memory_used_ratio",
    "bubble_ratio",
    "latency_ms",
    "bandwidth_bytes_per_s",
)
HEAT_METRICS = (*RANK_METRICS, "p2p_wait_s", "exposed_comm_ratio")
WORDS = (
    "surviving",
    "abandoned",
    "non_finite",
    "step",
    "time",
    "tokens",
    "elapsed",
    "generation",
    "rank",
    "empty",
    "median",
    "smoothed",
)
_RATIOS = {"utilization_ratio", "memory_used_ratio", "bubble_ratio", "exposed_comm_ratio"}
_POSITIVE = {"loss", "grad_norm"}
_MEBI = 1 << 20


@dataclass(frozen=True)
class Drawing:
    """How the panels of a run are drawn, which they share.

    Attributes:
        extent: first and last step that are shown without a zoom.
        keep: how much is smoothed, 0 for not at all.
        revision: while it stays the same, a zoom does.
    """

    run: Json
    axis: Axis
    extent: Window | None
    log: bool
    keep: float
    revision: str


def of_run(
    session: Session, drawing: Drawing, series: Mapping[Wanted, Series], nodes: Sequence[Json]
) -> list[Panel]:
    """Return the panels of the run as a whole, by the metric that each shows."""
    t, run = session.t, drawing.run
    by_metric = {each.metric: found for each, found in series.items() if each.rank is None}
    marks = _marks(session, run)
    panels = [
        _one(session, drawing, metric, t(f"metric.{metric}"), by_metric[metric], marks)
        for metric in RUN_METRICS
    ]
    factor = mfu_factor(run, nodes)
    if factor is not None:
        found = by_metric[STEP_TIME]
        with np.errstate(divide="ignore"):
            mfu = found.with_values(factor / found.values)
        panels.append(_one(session, drawing, "mfu", t("metric.mfu"), mfu, marks))
    parts = [(t(f"metric.part.{metric}"), by_metric[metric]) for metric in PARTS]
    return [
        *panels,
        stack_panel(
            "step_time",
            t("metric.step_time"),
            "s",
            parts,
            words=words(session),
            axis=drawing.axis,
            extent=drawing.extent,
            revision=drawing.revision,
        ),
    ]


def first(session: Session, drawing: Drawing, loss: Series) -> list[Panel]:
    """Return what a page that has just been opened shows: the loss, and places for the others."""
    t = session.t
    marks = generation_marks(drawing.run.get("attempts") or [], t("charts.generation_mark"))
    names = (*RUN_METRICS, "step_time", *RANK_METRICS)
    return [
        _one(session, drawing, "loss", t("metric.loss"), loss, marks),
        *(waiting_panel(name, t(f"metric.{name}")) for name in names if name != "loss"),
    ]


def _one(
    session: Session,
    drawing: Drawing,
    metric: str,
    title: str,
    series: Series,
    marks: Sequence[Mark],
) -> Panel:
    panel = run_panel(
        metric,
        title,
        "%" if metric == "mfu" else unit(metric),
        series,
        lineage(drawing.run.get("attempts") or []),
        words=words(session),
        marks=marks,
        axis=drawing.axis,
        extent=drawing.extent,
        log=drawing.log and metric in _POSITIVE,
        keep=drawing.keep,
        revision=drawing.revision,
    )
    if metric == "mfu":
        panel["layout"]["yaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    return panel


def of_ranks(session: Session, drawing: Drawing, series: Mapping[Wanted, Series]) -> list[Panel]:
    """Return the panels with a line for each rank."""
    label = session.t("charts.generation_mark")
    marks = generation_marks(drawing.run.get("attempts") or [], label)
    return [
        rank_panel(
            metric,
            session.t(f"metric.{metric}"),
            unit(metric),
            {
                wanted.rank: scaled(found, metric)
                for wanted, found in series.items()
                if wanted.metric == metric and wanted.rank is not None
            },
            words=words(session),
            marks=marks,
            axis=drawing.axis,
            extent=drawing.extent,
            ratio=metric in _RATIOS,
            revision=drawing.revision,
        )
        for metric in RANK_METRICS
    ]


def happened(session: Session, drawing: Drawing) -> Panel:
    """Return what happened to the run, on the axis of its charts."""
    t, run, reader = session.t, drawing.run, session.reader
    run_id, attempts = str(run["id"]), run.get("attempts") or []
    say = {name: t.word("checkpoint.state", name) for name in states.CHECKPOINT}
    told = [
        *happenings.generations(attempts, lineage(attempts), t("charts.generation_mark")),
        *happenings.alerts(list(reversed(reader.alerts(run_id)))),
        *happenings.actions(list(reversed(reader.incidents(run_id)))),
        *happenings.checkpoints(list(reversed(reader.checkpoints(run_id))), say),
    ]
    return happenings.happenings_panel(
        "happened",
        t("charts.happened"),
        told,
        labels={row: t(f"charts.row.{row}") for row in happenings.ROWS},
        words=words(session),
        axis=drawing.axis,
        extent=drawing.extent,
        revision=drawing.revision,
    )


def heat(session: Session, ranks: Sequence[int], series: Mapping[Wanted, Series]) -> list[Panel]:
    """Return the newest values of all ranks side by side, where there are several."""
    if len(ranks) < 2:
        return []
    t = session.t
    rows = [t(f"heat.{metric}") for metric in HEAT_METRICS]
    by_rank = {(each.metric, each.rank): found for each, found in series.items()}
    values = np.full((len(HEAT_METRICS), len(ranks)), np.nan)
    for row, metric in enumerate(HEAT_METRICS):
        for column, rank in enumerate(ranks):
            found = by_rank.get((metric, rank))
            if found is not None:
                values[row, column] = scaled(found, metric).newest()
    texts = [
        [_told(value, metric) for value in line]
        for metric, line in zip(HEAT_METRICS, values, strict=True)
    ]
    columns = [f"{t('charts.rank')} {rank}" for rank in ranks]
    return [
        heat_panel("heat", t("charts.heat"), rows, columns, values, texts, words=words(session))
    ]


def _marks(session: Session, run: Json) -> list[Mark]:
    return [
        *generation_marks(run.get("attempts") or [], session.t("charts.generation_mark")),
        *alert_marks(session.reader.alerts(str(run["id"]))),
    ]


def _told(value: float, metric: str) -> str:
    if not np.isfinite(value):
        return ""
    return f"{value:.0%}" if metric in _RATIOS else f"{number(value, 3)} {unit(metric)}"


def scaled(series: Series, metric: str) -> Series:
    """Return a series in the unit in which its metric is drawn."""
    factor = scale(metric)
    return series if factor == 1.0 else series.scaled(factor)


def scale(metric: str) -> float:
    """Return what a value is multiplied by to be in the unit in which its metric is drawn."""
    return 1 / _MEBI if metric == "bandwidth_bytes_per_s" else 1.0


def unit(metric: str) -> str:
    """Return the unit in which a metric is drawn."""
    if metric in _RATIOS:
        return "%"
    if metric == "bandwidth_bytes_per_s":
        return "MiB/s"
    if metric == "grad_norm":
        return "L2"
    if metric == "lr":
        return ""
    return (BY_NAME.get(metric) or DERIVED[metric]).unit


def words(session: Session) -> dict[str, str]:
    """Return what panels say, in the reader's language."""
    return {name: session.t(f"charts.{name}") for name in WORDS}
