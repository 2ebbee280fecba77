"""What the charts of a run show: which series are read, over which axis, in which window. Looked at
again and again by the browser, outside of Streamlit's script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard import windows
from dashboard.charts.axis import KINDS, Axis, AxisKind, Window
from dashboard.charts.panels import Panel
from dashboard.charts.series import Series, extent, lineage, surviving
from dashboard.data import MOST_POINTS, Json
from dashboard.figures import figures, figures_text
from dashboard.formats import number
from dashboard.session import Session
from dashboard.tails import Wanted, ahead, read_all
from dashboard.views import link_panels, run_panels
from dashboard.views.run_panels import HEAT_METRICS, PARTS, RANK_METRICS, RUN_METRICS, STEP_TIME
from dashboard.windows import read_stretches

SMOOTHING: Mapping[str, float] = {"off": 0.0, "some": 0.9, "much": 0.99}
MOST_RANK_POINTS = 8 * MOST_POINTS
"""Of one metric, all ranks together."""
LEAST_RANK_POINTS = 200


@dataclass(frozen=True)
class Asked:
    """How the charts of a run are to be drawn.

    Attributes:
        keep: how much is smoothed.
        steps: the window as an address names it.
        reach: the window as the charts tell it, from where to where on their axis.
        first: only what is seen first, for a page that has just been opened.
    """

    kind: AxisKind = KINDS[0]
    keep: float = 0.0
    log: bool = False
    steps: Window | None = None
    reach: tuple[Any, Any] | None = None
    first: bool = False


@dataclass(frozen=True)
class Drawn:
    """The charts of a run.

    Attributes:
        window: the steps that they show, None for all.
        reach: the same on their axis.
        notes: sentences beside them.
    """

    panels: list[Panel]
    series: dict[Wanted, Series]
    window: Window | None = None
    reach: tuple[float, float] | None = None
    notes: list[str] = field(default_factory=list)


def coming(session: Session, run_id: str, asked: Asked) -> list[Json]:
    """Return what `draw` is about to ask of the run's series, as far as the last look tells."""
    run = session.reader.known_run(run_id)
    if run is None and not asked.first:
        return []
    tails = session.memory.get("tails") or {}
    reference, wanted = _series(asked, run or {})
    if asked.steps is None and asked.reach is None:
        return ahead(tails, run_id, wanted)
    grown = ahead(tails, run_id, [reference])
    window = asked.steps
    if asked.reach is not None and asked.kind == "step":
        window = Axis().steps_within(*asked.reach)
    if run is None or window is None:
        return grown
    kept = session.memory.get("stretches") or {}
    return grown + windows.ahead(kept, run, wanted, window)


def draw(session: Session, run: Json, asked: Asked) -> Drawn:
    """Return the charts of a run."""
    run_id, kind = str(run["id"]), asked.kind
    reference, wanted = _series(asked, run)
    # A window on an axis of steps says by itself which steps those are.
    whole = asked.steps is None and asked.reach is None
    series = _whole(session, run, wanted if whole else [reference])
    axis = Axis(kind, _alive(series[reference], run), session.formats.zone)
    window = asked.steps if asked.reach is None else axis.steps_within(*asked.reach)
    shown = extent([series[reference]])
    told: dict[str, str] = {}
    if window is not None:
        series, told = _stretch(session, run, wanted, window)
    elif not whole:
        series = _whole(session, run, wanted)
    drawing = run_panels.Drawing(
        run=run,
        axis=axis,
        extent=shown,
        log=asked.log,
        keep=asked.keep,
        revision=f"{run_id}/{kind}",
    )
    if asked.first:
        panels = run_panels.first(session, drawing, series[reference])
        return _drawn(panels, told, series, window, axis)
    nodes = session.reader.nodes()
    links = link_panels.of_run(session, run, nodes)
    panels = [
        *run_panels.of_run(session, drawing, series, nodes),
        run_panels.happened(session, drawing),
        *run_panels.of_ranks(session, drawing, series),
        *run_panels.heat(session, _ranks(run), series),
        *links,
    ]
    notes = []
    if window is not None:
        first, last = (number(step) for step in window)
        notes.append(session.t("charts.window", first=first, last=last))
    if len(link_panels.nodes_of(run)) > 1 and not links:
        notes.append(session.t("links.unknown"))
    return _drawn(panels, told, series, window, axis, notes)


def _drawn(
    panels: list[Panel],
    told: Mapping[str, str],
    series: dict[Wanted, Series],
    window: Window | None,
    axis: Axis,
    notes: Sequence[str] = (),
) -> Drawn:
    for panel in panels:
        panel["figures"] = told.get(str(panel["id"]), "")
    return Drawn(panels, series, window, axis.extent(window), list(notes))


def _alive(reference: Series, run: Json) -> Series:
    return reference.where(surviving(reference, lineage(run.get("attempts") or [])))


def _ranks(run: Json) -> list[int]:
    return [int(rank["rank"]) for rank in run.get("ranks") or []]


def _series(asked: Asked, run: Json) -> tuple[Wanted, list[Wanted]]:
    """Return the series that others are placed by, and all that are drawn."""
    tokens, ranks = asked.kind == "tokens", _ranks(run)
    reference = Wanted("loss", all_generations=True, tokens=tokens)
    if asked.first:
        return reference, [reference]
    points = max(LEAST_RANK_POINTS, min(MOST_POINTS, MOST_RANK_POINTS // max(1, len(ranks))))
    return reference, [
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
