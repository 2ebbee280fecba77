"""The live charts of a run: what is read for them, and which panels come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st

from dashboard.charts.heat import heat_panel
from dashboard.charts.marks import alert_marks, generation_marks
from dashboard.charts.panels import Panel, rank_panel, run_panel
from dashboard.charts.series import Series, extent, lineage
from dashboard.data import Json
from dashboard.session import Session
from dashboard.tails import Wanted, read_all
from dashboard.widgets.charts import charts
from trainmaster.metrics import BY_NAME, DERIVED

RUN_METRICS = ("loss", "grad_norm", "tokens_per_s")
RANK_METRICS = (
    "utilization_ratio",
    "memory_used_ratio",
    "bubble_ratio",
    "latency_ms",
    "bandwidth_bytes_per_s",
)
WORDS = (
    "surviving",
    "abandoned",
    "non_finite",
    "step",
    "generation",
    "rank",
    "empty",
    "median",
    "smoothed",
)
_RATIOS = {"utilization_ratio", "memory_used_ratio", "bubble_ratio"}
_POSITIVE = {"loss", "grad_norm"}
SMOOTHING: Mapping[str, float] = {"off": 0.0, "some": 0.9, "much": 0.99}
_MEBI = 1 << 20


def show(session: Session, run_id: str) -> None:
    """Show the charts of a run."""
    with session.guarded(quiet=True):
        run = session.reader.run(run_id)
        tails = session.memory.setdefault("tails", {})
        ranks = [int(rank["rank"]) for rank in run.get("ranks") or []]
        wanted = [
            *(Wanted(metric, all_generations=True) for metric in RUN_METRICS),
            *(Wanted(metric, rank) for metric in RANK_METRICS for rank in ranks),
        ]
        found = read_all(session.reader, tails, run, wanted)
        series = dict(zip(wanted, found, strict=True))
        panels = [
            *_run_panels(session, run, series),
            *_rank_panels(session, run, series),
            *_heat(session, ranks, series),
        ]
        _choices(session)
        charts(panels, key=f"charts-{run_id}", revision=run_id, t=session.t)


def _choices(session: Session) -> None:
    """Let the reader choose how curves are drawn; what is chosen holds from the next look on."""
    t = session.t
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.segmented_control(
            t("charts.smoothing"),
            list(SMOOTHING),
            default="off",
            required=True,
            format_func=lambda name: t(f"charts.smoothing.{name}"),
            key="smoothing",
        )
        st.toggle(t("charts.log"), key="log")


def _run_panels(session: Session, run: Json, series: Mapping[Wanted, Series]) -> list[Panel]:
    attempts = run.get("attempts") or []
    survivors = lineage(attempts)
    marks = [
        *generation_marks(attempts, session.t("charts.generation_mark")),
        *alert_marks(session.reader.alerts(run["id"])),
    ]
    return [
        run_panel(
            metric,
            session.t(f"metric.{metric}"),
            unit(metric),
            series[Wanted(metric, all_generations=True)],
            survivors,
            words=words(session),
            marks=marks,
            extent=extent(series.values()),
            log=bool(st.session_state.get("log")) and metric in _POSITIVE,
            keep=SMOOTHING[str(st.session_state.get("smoothing") or "off")],
            revision=str(run["id"]),
        )
        for metric in RUN_METRICS
    ]


def _rank_panels(session: Session, run: Json, series: Mapping[Wanted, Series]) -> list[Panel]:
    marks = generation_marks(run.get("attempts") or [], session.t("charts.generation_mark"))
    return [
        rank_panel(
            metric,
            session.t(f"metric.{metric}"),
            unit(metric),
            {
                wanted.rank: _scaled(found, metric)
                for wanted, found in series.items()
                if wanted.metric == metric and wanted.rank is not None
            },
            words=words(session),
            marks=marks,
            extent=extent(series.values()),
            ratio=metric in _RATIOS,
            revision=str(run["id"]),
        )
        for metric in RANK_METRICS
    ]


def _heat(session: Session, ranks: Sequence[int], series: Mapping[Wanted, Series]) -> list[Panel]:
    """Return the newest values of all ranks side by side, where there are several."""
    if len(ranks) < 2:
        return []
    rows = [session.t(f"metric.{metric}") for metric in RANK_METRICS]
    values = np.full((len(RANK_METRICS), len(ranks)), np.nan)
    for row, metric in enumerate(RANK_METRICS):
        for column, rank in enumerate(ranks):
            values[row, column] = _scaled(series[Wanted(metric, rank)], metric).newest()
    texts = [
        [_told(value, metric) for value in line]
        for metric, line in zip(RANK_METRICS, values, strict=True)
    ]
    columns = [f"{session.t('charts.rank')} {rank}" for rank in ranks]
    title = session.t("charts.heat")
    return [heat_panel("heat", title, rows, columns, values, texts, words=words(session))]


def _told(value: float, metric: str) -> str:
    if not np.isfinite(value):
        return ""
    return f"{value:.0%}" if metric in _RATIOS else f"{value:.3g} {unit(metric)}"


def _scaled(series: Series, metric: str) -> Series:
    if metric != "bandwidth_bytes_per_s":
        return series
    return Series(
        series.generations,
        series.steps,
        series.values / _MEBI,
        series.measured,
        series.downsampled,
    )


def unit(metric: str) -> str:
    """Return the unit in which a metric is drawn."""
    if metric in _RATIOS:
        return "%"
    if metric == "bandwidth_bytes_per_s":
        return "MiB/s"
    if metric == "grad_norm":
        return "L2"
    return (BY_NAME.get(metric) or DERIVED[metric]).unit


def words(session: Session) -> dict[str, str]:
    """Return what panels say, in the reader's language."""
    return {name: session.t(f"charts.{name}") for name in WORDS}
