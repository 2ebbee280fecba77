"""What if: the planner asked about a spec or a scenario, with its prediction and its reasons."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st
import yaml

from dashboard.charts.gantt import gantt_panel, span
from dashboard.charts.panels import Panel
from dashboard.data import Json
from dashboard.formats import NOTHING, number
from dashboard.session import Session
from dashboard.views.run_pipeline import WORDS
from dashboard.views.submit import example, tell_problems
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import banner, facts, section, title
from trainmaster.errors import SpecError, TrainmasterError

SOURCES = ("connected", "cluster", "scenario")
CLUSTER = """nodes:
  - {name: fast, slots: 2}
  - {name: slow, slots: 2, emulate: {speed: 0.5}}
links:
  - {from: fast, to: slow, latency_ms: 2, mbps: 1000}
"""
_KINDS = {"F": "forward", "B": "backward", "I": "input", "W": "weights"}


def show(session: Session) -> None:
    """Show the form, and below it the newest answer."""
    t = session.t
    title(t("plan.title"), small=t("plan.lead"))
    source = st.segmented_control(
        t("plan.source"),
        SOURCES,
        default="cluster",
        required=True,
        format_func=lambda name: t(f"plan.source.{name}"),
        key="plan-source",
    )
    with st.form("plan"):
        texts = _fields(session, str(source))
        pressed = st.form_submit_button(t("plan.do"), type="primary")
    if pressed:
        st.session_state.pop("planned", None)
        try:
            with st.spinner(t("plan.doing")):
                body = {name: _read(text) for name, text in texts.items()}
                st.session_state["planned"] = session.patient_api.post("/v1/plan", body)
        except yaml.YAMLError as error:
            banner("bad", t("plan.no_yaml", why=str(error)))
        except SpecError as error:
            tell_problems(session, error, "rules.problems")
        except TrainmasterError as error:
            session.refusal(error)
    found = st.session_state.get("planned")
    if found is not None:
        _tell(session, found)


def _fields(session: Session, source: str) -> dict[str, str]:
    """Return the name of each part of the question, and what was typed for it."""
    t = session.t
    if source == "scenario":
        scenario = st.text_area(t("plan.scenario"), height=320, key="plan-scenario")
        return {"scenario": scenario or ""}
    spec = st.text_area(t("submit.spec"), value=example(), height=320, key="plan-spec")
    if source == "connected":
        return {"spec": spec or ""}
    cluster = st.text_area(t("plan.cluster"), value=CLUSTER, height=150, key="plan-cluster")
    return {"spec": spec or "", "cluster": cluster or ""}


def _read(text: str) -> Any:
    return yaml.safe_load(text)


def _tell(session: Session, found: Json) -> None:
    t = session.t
    facts(
        [
            (t("plan.step_time"), _seconds(found.get("step_time_s"))),
            (t("plan.samples"), number(found.get("samples_per_s"), 3)),
            (t("plan.bubble"), _share(found.get("bubble_ratio"))),
            (t("plan.sync"), _share(found.get("exposed_sync_ratio"))),
            (t("plan.bound"), _seconds(found.get("lower_bound_s"))),
            (t("plan.exact"), t("plan.exact.yes" if found.get("exact") else "plan.exact.no")),
        ]
    )
    for warning in found.get("warnings") or []:
        banner("warn", str(warning))
    section(t("plan.why"))
    st.text("\n".join(f"• {line}" for line in found.get("why") or []))
    panel = gantt(session, found.get("gantt") or {})
    if panel is not None:
        charts([panel], key="plan-gantt", revision="plan", t=t)
    _rejected(session, found)
    section(t("plan.plan"))
    parallel = yaml.safe_dump(found.get("plan"), sort_keys=False, allow_unicode=True)
    st.code(parallel, language="yaml")


def gantt(session: Session, told: Json) -> Panel | None:
    """Return the predicted step, with a line for each place of a pipeline; None without bars."""
    bars: list[Json] = told.get("bars") or []
    if not bars:
        return None
    lines: dict[tuple[int, int], dict[str, list[Any]]] = {}
    for bar in bars:
        columns = lines.setdefault(
            (int(bar["pipeline"]), int(bar["stage"])),
            {"kind": [], "stage": [], "number": [], "start_s": [], "end_s": []},
        )
        columns["kind"].append(_KINDS.get(str(bar["kind"]), str(bar["kind"])))
        columns["stage"].append(bar["stage"])
        columns["number"].append(bar["micro_batch"])
        columns["start_s"].append(bar["start_s"])
        columns["end_s"].append(bar["end_s"])
    ranks = [
        {"rank": f"{pipeline}.{stage}", "actions": columns}
        for (pipeline, stage), columns in sorted(lines.items())
    ]
    words = {name: session.t(f"pipeline.word.{name}") for name in WORDS}
    words["rank"] = session.t("plan.place")
    heading = session.t("plan.gantt")
    return gantt_panel("predicted", heading, ranks, words=words, span_s=span(ranks))


def _rejected(session: Session, found: Json) -> None:
    t = session.t
    rejected: list[Json] = found.get("rejected") or []
    if not rejected:
        return
    section(t("plan.rejected"))
    table(
        [
            Column("family", t("plan.family")),
            Column("time", t("plan.step_time"), "right"),
            Column("because", t("column.because")),
        ],
        [
            Row(
                str(place),
                {
                    "family": cell(
                        str(each.get("family")), title=json.dumps(each.get("plan"))[:500]
                    ),
                    "time": _seconds(each.get("step_time_s")),
                    "because": str(each.get("because") or ""),
                },
            )
            for place, each in enumerate(rejected)
        ],
        key="plan-rejected",
        caption=t("plan.rejected"),
        empty="",
    )


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g} s"


def _share(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1%}"
