"""What the planner answers: its plan with the prediction, the reasons, and what was rejected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st
import yaml

from dashboard.charts.gantt import gantt_panel, span
from dashboard.charts.panels import Panel
from dashboard.data import Json
from dashboard.formats import NOTHING, number
from dashboard.forms import as_text
from dashboard.plans import submittable
from dashboard.session import Session
from dashboard.views.run_pipeline import WORDS
from dashboard.views.written import tell_problems
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import banner, facts, section
from trainmaster.errors import SpecError, TrainmasterError

_KINDS = {"F": "forward", "B": "backward", "I": "input", "W": "weights"}


def ask(session: Session, place: str, body: Mapping[str, Any]) -> None:
    """Ask the planner, and keep its answer for `show` at the same place."""
    session.memory.pop(f"planned:{place}", None)
    try:
        with st.spinner(session.t("plan.doing")):
            found = session.patient_api.post("/v1/plan", dict(body))
        session.memory[f"planned:{place}"] = (dict(body), found)
    except yaml.YAMLError as error:
        banner("bad", session.t("plan.no_yaml", why=str(error)))
    except SpecError as error:
        tell_problems(session, error, "rules.problems")
    except TrainmasterError as error:
        session.refusal(error)


def answered(session: Session, place: str, body: Mapping[str, Any]) -> Json | None:
    """Return what was answered to exactly this at the same place; None if that was not asked."""
    asked, found = session.memory.get(f"planned:{place}", (None, None))
    return found if asked == body else None


def show(session: Session, place: str, *, spec: str, may_take: bool) -> str | None:
    """Show the newest answer at this place; return the spec with the found plan in it once a person
    takes it.
    """
    kept = session.memory.get(f"planned:{place}")
    if kept is None:
        return None
    body, found = kept
    t = session.t
    if body.get("spec") not in {None, spec}:
        banner("info", t("plan.outdated"))
    prediction(session, found)
    taken = None
    if may_take:
        text = submittable(str(body["spec"]), found)
        if st.button(
            t("plan.take"),
            key=f"plan-take:{place}",
            disabled=text is None,
            help=t("plan.take.help"),
        ):
            taken = text
    for warning in found.get("warnings") or []:
        banner("warn", str(warning))
    section(t("plan.why"))
    st.text("\n".join(f"• {line}" for line in found.get("why") or []))
    panel = gantt(session, found.get("gantt") or {})
    if panel is not None:
        charts([panel], key=f"gantt:{place}", revision="plan", t=t)
    _sensitivities(session, found, place)
    _rejected(session, found, place)
    section(t("plan.plan"))
    st.code(as_text(found.get("plan")), language="yaml")
    return taken


def prediction(session: Session, found: Json) -> None:
    """Show what the planner expects of a plan, in numbers."""
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


def _sensitivities(session: Session, found: Json, place: str) -> None:
    """Show what would make the step shorter, the most first."""
    t = session.t
    changes: list[Json] = found.get("sensitivities") or []
    now = found.get("step_time_s")
    if not changes or not now:
        return
    ordered = sorted(changes, key=lambda each: each.get("step_time_s") or float("inf"))
    section(t("plan.sensitivities"))
    table(
        [
            Column("change", t("plan.change")),
            Column("time", t("plan.step_time"), "right"),
            Column("gain", t("plan.gain"), "right"),
        ],
        [
            Row(
                str(number_of),
                {
                    "change": str(each.get("change")),
                    "time": _seconds(each.get("step_time_s")),
                    "gain": NOTHING
                    if each.get("step_time_s") is None
                    else f"{each['step_time_s'] / now - 1:+.1%}",
                },
            )
            for number_of, each in enumerate(ordered)
        ],
        key=f"plan-sensitivities:{place}",
        caption=t("plan.sensitivities"),
        empty="",
    )


def _rejected(session: Session, found: Json, place: str) -> None:
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
                str(number_of),
                {
                    "family": cell(
                        str(each.get("family")), title=json.dumps(each.get("plan"))[:500]
                    ),
                    "time": _seconds(each.get("step_time_s")),
                    "because": str(each.get("because") or ""),
                },
            )
            for number_of, each in enumerate(rejected)
        ],
        key=f"plan-rejected:{place}",
        caption=t("plan.rejected"),
        empty="",
    )


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g} s"


def _share(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1%}"
