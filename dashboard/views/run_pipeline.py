"""The pipeline of a run in a recorded step: what each rank did when, beside what was planned."""

from __future__ import annotations

from urllib.parse import quote

import streamlit as st

from dashboard.charts.gantt import COMPUTE, OTHER, gantt_panel, span
from dashboard.charts.panels import Panel
from dashboard.data import Json
from dashboard.formats import NOTHING, number
from dashboard.session import Session
from dashboard.steering import verb
from dashboard.views import run_steering
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, table
from dashboard.widgets.text import banner

WORDS = (*COMPUTE, *OTHER, "rank", "micro_batch", "stage", "seconds", "empty", "too_many")
RATIOS = ("bubble_ratio", "compute_ratio", "optimizer_ratio", "exposed_comm_ratio", "idle_ratio")
MOST_STEPS = 50
MOST_KEPT = 4
COMMAND = "trainmaster timeline {run} --step {step} --chrome trace.json"


def show(session: Session, run: Json) -> None:
    """Show a recorded step of a run, and let the next one be recorded."""
    t = session.t
    run_id = str(run["id"])
    told = verb("timeline", str(run["state"]), session.role)
    why = t(told.reason, state=t.word("run.state", str(run["state"]))) if told.reason else ""
    if st.button(
        t("steer.timeline"),
        key="record",
        disabled=not told.enabled,
        help=why or t("steer.help.timeline"),
    ):
        run_steering.send(session, run, "timeline", {})
        st.rerun(scope="fragment")
    recorded = list(reversed(session.reader.timelines(run_id)))[:MOST_STEPS]
    if not recorded:
        banner("info", t("pipeline.none"))
        return
    found = {f"{each['generation']}/{each['step']}": each for each in recorded}
    chosen = str(
        st.selectbox(
            t("pipeline.step"),
            list(found),
            format_func=lambda name: t(
                "pipeline.which", step=found[name]["step"], generation=found[name]["generation"]
            ),
            key="recorded-step",
        )
    )
    which = found.get(chosen, recorded[0])
    _tell(session, run_id, _timeline(session, run_id, which))


def _timeline(session: Session, run_id: str, which: Json) -> Json:
    """Read a timeline; one that has come from all ranks does not change any more."""
    key = (run_id, which["generation"], which["step"])
    kept: dict[tuple[str, int, int], Json] = session.memory.setdefault("timelines", {})
    if key in kept:
        return kept[key]
    path = f"/v1/runs/{quote(run_id, safe='')}/timelines/{which['step']}"
    found: Json = session.reader.get(path, generation=which["generation"])
    if not found.get("missing_ranks"):
        kept[key] = found
        while len(kept) > MOST_KEPT:
            del kept[next(iter(kept))]
    return found


def _tell(session: Session, run_id: str, timeline: Json) -> None:
    t = session.t
    st.text(t("pipeline.clock", error=f"{float(timeline.get('clock_error_s') or 0) * 1e3:.3g}"))
    missing = timeline.get("missing_ranks") or []
    if missing:
        banner("warn", t("pipeline.missing", ranks=", ".join(map(str, missing))))
    for planned in timeline.get("planned") or []:
        if planned.get("because"):
            told = t("pipeline.no_plan", replica=planned["replica"], because=planned["because"])
            banner("info", told)
    charts(
        panels(session, timeline),
        key=f"gantt-{run_id}",
        revision=f"{run_id}/{timeline['generation']}/{timeline['step']}",
        t=t,
    )
    _numbers(session, timeline)
    st.text(t("pipeline.perfetto"))
    st.code(COMMAND.format(run=run_id, step=timeline["step"]), language="bash")


def panels(session: Session, timeline: Json) -> list[Panel]:
    """Return the measured step and the planned one, on the same axis of seconds."""
    words = {name: session.t(f"pipeline.word.{name}") for name in WORDS}
    measured: list[Json] = timeline.get("ranks") or []
    planned = [rank for each in timeline.get("planned") or [] for rank in each.get("ranks") or []]
    first, last = span([*measured, *planned])
    revision = f"{timeline['generation']}/{timeline['step']}"
    return [
        gantt_panel(
            name,
            session.t(f"pipeline.{name}"),
            ranks,
            words=words,
            span_s=(first, last),
            revision=revision,
        )
        for name, ranks in (("measured", measured), ("planned", planned))
    ]


def _numbers(session: Session, timeline: Json) -> None:
    t = session.t
    planned = {
        rank["rank"]: rank.get("bubble_ratio")
        for each in timeline.get("planned") or []
        for rank in each.get("ranks") or []
    }
    columns = [
        Column("rank", t("column.rank"), "right"),
        Column("node", t("column.node")),
        *(Column(name, t(f"pipeline.{name}"), "right") for name in RATIOS),
        Column("planned", t("pipeline.planned_bubble"), "right"),
        Column("unsent", t("pipeline.waited_unsent_s"), "right"),
        Column("under_way", t("pipeline.waited_under_way_s"), "right"),
    ]
    rows = []
    for rank in timeline.get("ranks") or []:
        summary: Json = rank.get("summary") or {}
        rows.append(
            Row(
                str(rank["rank"]),
                {
                    "rank": str(rank["rank"]),
                    "node": str(rank.get("node") or NOTHING),
                    **{name: _share(summary.get(name)) for name in RATIOS},
                    "planned": _share(planned.get(rank["rank"])),
                    "unsent": _ms(summary.get("waited_unsent_s")),
                    "under_way": _ms(summary.get("waited_under_way_s")),
                },
            )
        )
    table(columns, rows, key="gantt-numbers", caption=t("pipeline.numbers"), empty="")


def _share(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1%}"


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{number(seconds * 1e3, 3)} ms"
