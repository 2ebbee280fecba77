"""Several runs over each other: their curves, what differs in their specs, how far each came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard import states
from dashboard.charts import coordinates
from dashboard.charts.axis import SHARED, Axis, since_first
from dashboard.charts.panels import overlay_panel
from dashboard.charts.series import Series, extent
from dashboard.comparison import differences, lowest, numbers_that_differ
from dashboard.data import Json
from dashboard.exported import runs_csv
from dashboard.formats import NOTHING, number
from dashboard.session import Session
from dashboard.tails import Wanted, read_all
from dashboard.views import go, nothing_yet
from dashboard.views.run_panels import unit, words
from dashboard.widgets.addressed import segments
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import banner, section, title

MOST_RUNS = 10
METRICS = ("loss", "grad_norm", "tokens_per_s")
_LONGEST = 60


def show(session: Session) -> None:
    """Show the runs that the address names, or those that are chosen."""
    t = session.t
    title(t("compare.title"), small=t("compare.lead"))
    with session.guarded():
        known = {str(run["id"]): run for run in session.reader.runs()}
        if not known:
            nothing_yet.show(session)
            return
        asked = [run for run in st.query_params.get("runs", "").split(",") if run in known]
        chosen = st.multiselect(
            t("compare.runs"),
            list(known),
            default=asked[:MOST_RUNS],
            max_selections=MOST_RUNS,
            format_func=lambda run: _name(known[run]),
            placeholder=t("compare.runs"),
            key="compare-runs",
        )
        st.query_params["runs"] = ",".join(chosen)
        if len(chosen) < 2:
            banner("info", t("compare.few"))
            return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        kind = segments(
            t("charts.axis"), SHARED, name="axis", words=lambda name: t(f"charts.axis.{name}")
        )
        log = st.toggle(t("charts.log"), key="compare-log")
    axis = Axis(kind)  # type: ignore[arg-type]
    session.live(
        lambda: _compare(session, chosen, axis, log=log), key="compare", every_s=session.refresh_s
    )
    _offer(session, chosen)


def _compare(session: Session, chosen: Sequence[str], axis: Axis, *, log: bool) -> None:
    with session.guarded():
        runs = [session.reader.run(run) for run in chosen]
        series = {str(run["id"]): _series(session, run, axis) for run in runs}
        _curves(session, runs, series, axis, log=log)
        section(session.t("compare.values"))
        _values(session, runs, series)
        _coordinates(session, runs, series)
        section(session.t("compare.differences"))
        _differences(session, runs)
        session.memory["compared"] = series


def _coordinates(
    session: Session, runs: Sequence[Json], series: Mapping[str, Mapping[str, Series]]
) -> None:
    """Show what the runs were given beside what came of it, one line a run."""
    t = session.t
    given = numbers_that_differ([run.get("spec") or {} for run in runs])
    lows = [lowest(series[str(run["id"])]["loss"]) for run in runs]
    came = [
        (t("column.tokens_per_s"), tuple(run.get("tokens_per_s") for run in runs)),
        (t("run.skipped_steps"), tuple(float(run.get("skipped_steps") or 0) for run in runs)),
        (t("compare.lowest"), tuple(None if low is None else low[0] for low in lows)),
    ]
    panel = coordinates.coordinates_panel(
        "coordinates",
        t("compare.coordinates"),
        [_name(run) for run in runs],
        [coordinates.Axis(label, values) for label, values in [*given, *came]],
        revision="compare",
    )
    if panel is not None:
        charts([panel], key="compare-coordinates", revision="compare", t=t)


def _offer(session: Session, chosen: Sequence[str]) -> None:
    """Offer what is drawn as a table, and say how all points are had. Outside of the live part, as
    on a run's page.
    """
    t = session.t
    section(t("compare.export"))
    st.download_button(
        t("compare.export.drawn"),
        data=lambda: _drawn(session, chosen),
        file_name="runs.csv",
        mime="text/csv",
        on_click="ignore",
        key="compare-export",
    )
    st.text(t("compare.export.all"))
    command = "trainmaster export {run} --format csv --out {run}.csv"
    st.code("\n".join(command.format(run=run) for run in chosen), language="bash")


def _drawn(session: Session, chosen: Sequence[str]) -> str:
    series: Mapping[str, Mapping[str, Series]] = session.memory.get("compared", {})
    known = [run for run in chosen if run in series]
    return runs_csv(known, [series[run] for run in known])


def _series(session: Session, run: Json, axis: Axis) -> Mapping[str, Series]:
    tails = session.memory.setdefault("tails", {})
    wanted = [Wanted(metric, tokens=axis.kind == "tokens") for metric in METRICS]
    found = dict(zip(METRICS, read_all(session.reader, tails, run, wanted), strict=True))
    return since_first(found) if axis.kind == "elapsed" else found


def _curves(
    session: Session,
    runs: Sequence[Json],
    series: Mapping[str, Mapping[str, Series]],
    axis: Axis,
    *,
    log: bool,
) -> None:
    whole = extent([each for of_run in series.values() for each in of_run.values()])
    revision = f"{','.join(series)}/{axis.kind}"
    panels = [
        overlay_panel(
            metric,
            session.t(f"metric.{metric}"),
            unit(metric),
            [(_name(run), series[str(run["id"])][metric]) for run in runs],
            words=words(session),
            axis=axis,
            extent=whole if axis.kind == "step" else None,
            log=log,
            revision=revision,
        )
        for metric in METRICS
    ]
    charts(panels, key="compare-charts", revision=revision, t=session.t)


def _values(
    session: Session, runs: Sequence[Json], series: Mapping[str, Mapping[str, Series]]
) -> None:
    t = session.t
    found = {run: lowest(of_run["loss"]) for run, of_run in series.items()}
    best = min((each[0] for each in found.values() if each is not None), default=None)
    fastest = max((run.get("tokens_per_s") or 0.0 for run in runs), default=0.0)
    rows = []
    for run in runs:
        run_id, state = str(run["id"]), str(run["state"])
        low = found[run_id]
        shown = states.look(states.RUN, state)
        is_best = low is not None and low[0] == best
        goodput = run.get("goodput") or {}
        ratio = goodput.get("productive_ratio")
        rows.append(
            Row(
                run_id,
                {
                    "run": cell(_name(run), href=session.link("run", run=run_id)),
                    "state": cell(t.word("run.state", state), icon=shown.icon, tone=shown.tone),
                    "step": number(run.get("step")),
                    "loss": number(run.get("loss")),
                    "lowest": NOTHING
                    if low is None
                    else cell(
                        number(low[0]),
                        icon="★" if is_best else "",
                        sub=t("compare.at_step", step=number(low[1])),
                    ),
                    "speed": cell(
                        number(run.get("tokens_per_s"), 3),
                        icon="★" if fastest and run.get("tokens_per_s") == fastest else "",
                    ),
                    "skipped": number(run.get("skipped_steps") or 0),
                    "goodput": NOTHING if ratio is None else f"{ratio:.0%}",
                },
            )
        )
    pressed = table(
        [
            Column("run", t("column.run")),
            Column("state", t("column.state")),
            Column("step", t("column.step"), "right"),
            Column("loss", t("column.loss"), "right"),
            Column("lowest", t("compare.lowest"), "right"),
            Column("speed", t("column.tokens_per_s"), "right"),
            Column("skipped", t("run.skipped_steps"), "right"),
            Column("goodput", t("compare.goodput"), "right"),
        ],
        rows,
        key="compare-values",
        caption=t("compare.values"),
        empty="",
    )
    if pressed is not None:
        go.to_run(session, pressed.id)


def _differences(session: Session, runs: Sequence[Json]) -> None:
    t = session.t
    found = differences([run.get("spec") or {} for run in runs])
    table(
        [
            Column("path", t("compare.path")),
            *(Column(str(run["id"]), _name(run)) for run in runs),
        ],
        [
            Row(
                path,
                {
                    "path": cell(path, code=True),
                    **{
                        str(run["id"]): cell(_short(value) or NOTHING, code=True, title=value)
                        for run, value in zip(runs, values, strict=True)
                    },
                },
            )
            for path, values in found
        ],
        key="compare-differences",
        caption=t("compare.differences"),
        empty=t("compare.same"),
    )


def _name(run: Json) -> str:
    return f"{run.get('name') or run['id']} ({run['id']})"


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
