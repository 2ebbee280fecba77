"""The live charts of a run: what is read for them, over which axis, and in which window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard.charts.axis import KINDS, Axis, Window, read_window, window_text
from dashboard.charts.series import Series, extent, lineage, surviving
from dashboard.data import MOST_POINTS, Json
from dashboard.exported import run_csv
from dashboard.figures import figures, figures_text
from dashboard.formats import number
from dashboard.session import Session
from dashboard.tails import Wanted, read_all
from dashboard.views import link_panels, run_panels
from dashboard.views.run_panels import HEAT_METRICS, PARTS, RANK_METRICS, RUN_METRICS, STEP_TIME
from dashboard.widgets.addressed import segments
from dashboard.widgets.charts import charts, told_window
from dashboard.windows import read_stretches

SMOOTHING: Mapping[str, float] = {"off": 0.0, "some": 0.9, "much": 0.99}
MOST_RANK_POINTS = 8 * MOST_POINTS
"""Of one metric, all ranks together."""
LEAST_RANK_POINTS = 200
STEPS_IN_ADDRESS = "steps"


def show(session: Session, run_id: str) -> None:
    """Show the charts of a run."""
    with session.guarded(quiet=True):
        run = session.reader.run(run_id)
        _choices(session)
        kind = str(st.session_state.get("axis") or KINDS[0])
        reference = _whole(session, run, [_reference(kind)])[_reference(kind)]
        axis = Axis(kind, _alive(reference, run), session.formats.zone)  # type: ignore[arg-type]
        revision = f"{run_id}/{kind}"
        key = f"charts-{run_id}"
        window = _window(key, revision, axis)
        ranks = [int(rank["rank"]) for rank in run.get("ranks") or []]
        wanted = _wanted(kind, ranks)
        told: dict[str, str] = {}
        if window is None:
            series = _whole(session, run, wanted)
        else:
            series, told = _stretch(session, run, wanted, window)
        nodes = session.reader.nodes()
        drawing = run_panels.Drawing(
            run=run,
            axis=axis,
            extent=extent([reference]),
            log=bool(st.session_state.get("log")),
            keep=SMOOTHING[str(st.session_state.get("smoothing") or "off")],
            revision=revision,
        )
        links = link_panels.of_run(session, run, nodes)
        panels = [
            *run_panels.of_run(session, drawing, series, nodes),
            run_panels.happened(session, drawing),
            *run_panels.of_ranks(session, drawing, series),
            *run_panels.heat(session, ranks, series),
            *links,
        ]
        if window is not None:
            _tell_window(session, window)
        for panel in panels:
            panel["figures"] = told.get(str(panel["id"]), "")
        charts(
            panels,
            key=key,
            revision=revision,
            window=axis.extent(window),
            t=session.t,
        )
        if len(link_panels.nodes_of(run)) > 1 and not links:
            st.caption(session.t("links.unknown"))
        session.memory[_drawn(run_id)] = series


def offer(session: Session, run_id: str) -> None:
    """Offer what is drawn as a table, and say how all points are had.

    Stands outside of what is shown again and again: each showing of a button to save revokes what
    the one before would have saved, also under the press.
    """
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            session.t("compare.export.drawn"),
            data=lambda: run_csv(session.memory.get(_drawn(run_id), {})),
            file_name=f"{run_id}.csv",
            mime="text/csv",
            on_click="ignore",
            key="run-export",
        )
        st.caption(session.t("charts.export.all"))
        st.code(f"trainmaster export {run_id} --format csv --out {run_id}.csv", language="bash")


def _drawn(run_id: str) -> str:
    """Return under which name the session remembers what was drawn last of the run."""
    return f"drawn-{run_id}"


def _tell_window(session: Session, window: Window) -> None:
    first, last = (number(step) for step in window)
    st.caption(session.t("charts.window", first=first, last=last))


def _choices(session: Session) -> None:
    """Let the reader choose how curves are drawn."""
    t = session.t
    with st.container(horizontal=True, vertical_alignment="bottom"):
        segments(t("charts.axis"), KINDS, name="axis", words=lambda name: t(f"charts.axis.{name}"))
        st.segmented_control(
            t("charts.smoothing"),
            list(SMOOTHING),
            default="off",
            required=True,
            format_func=lambda name: t(f"charts.smoothing.{name}"),
            key="smoothing",
        )
        st.toggle(t("charts.log"), key="log")


def _reference(kind: str) -> Wanted:
    return Wanted("loss", all_generations=True, tokens=kind == "tokens")


def _alive(reference: Series, run: Json) -> Series:
    return reference.where(surviving(reference, lineage(run.get("attempts") or [])))


def _wanted(kind: str, ranks: Sequence[int]) -> list[Wanted]:
    tokens = kind == "tokens"
    points = max(LEAST_RANK_POINTS, min(MOST_POINTS, MOST_RANK_POINTS // max(1, len(ranks))))
    return [
        *(Wanted(metric, all_generations=True, tokens=tokens) for metric in RUN_METRICS),
        *(Wanted(metric, tokens=tokens) for metric in (STEP_TIME, *PARTS)),
        *(
            Wanted(metric, rank, points=points, tokens=tokens)
            for metric in HEAT_METRICS
            for rank in ranks
        ),
    ]


def _whole(session: Session, run: Json, wanted: Sequence[Wanted]) -> dict[Wanted, Series]:
    tails = session.memory.setdefault("tails", {})
    return dict(zip(wanted, read_all(session.reader, tails, run, wanted), strict=True))


def _stretch(
    session: Session, run: Json, wanted: Sequence[Wanted], window: Window
) -> tuple[dict[Wanted, Series], dict[str, str]]:
    """Return the series within a window, and for each panel the exact figures of it."""
    kept = session.memory.setdefault("stretches", {})
    found = dict(
        zip(wanted, read_stretches(session.reader, kept, run, wanted, window), strict=True)
    )
    told = {}
    for metric in (*RUN_METRICS, *RANK_METRICS):
        of_ranks = metric in RANK_METRICS
        each = [
            (wanted.rank, stretch.statistics)
            for wanted, stretch in found.items()
            if wanted.metric == metric and (wanted.rank is not None) == of_ranks
        ]
        told[metric] = figures_text(figures(each, scale=run_panels.scale(metric)), session.t)
    return {each: stretch.series for each, stretch in found.items()}, told


def _window(key: str, revision: str, axis: Axis) -> Window | None:
    """Return the steps that are zoomed into: as the charts tell them, else as the address does."""
    told = told_window(key, revision)
    if told is None:
        return read_window(st.query_params.get(STEPS_IN_ADDRESS))
    window = None if not told else axis.steps_within(*told)
    named = st.query_params.get(STEPS_IN_ADDRESS)
    if window is None and named is not None:
        del st.query_params[STEPS_IN_ADDRESS]
    elif window is not None and named != window_text(window):
        st.query_params[STEPS_IN_ADDRESS] = window_text(window)
    return window
