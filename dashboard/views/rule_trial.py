"""A rule tried on history before it is saved: on runs, on all of them, on a CSV; where it would
have fired is shown on what it looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard.charts.marks import Mark
from dashboard.charts.panels import overlay_panel
from dashboard.charts.series import Series, extent
from dashboard.data import Json
from dashboard.formats import NOTHING, number
from dashboard.session import Session
from dashboard.views.run_panels import unit, words
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import banner, section
from trainmaster.errors import TrainmasterError
from trainmaster.metrics import BY_NAME, DERIVED
from trainmaster.rule import Rule

MOST_RUNS = 100
MOST_MARKS = 200
MOST_CSV_BYTES = 64 << 20
ON = ("one", "all", "csv")


def show(session: Session, rule: Rule | None, *, key: str, run: str = "") -> None:
    """Let `rule` be tried, and show what it would have done; None is one with something wrong."""
    t = session.t
    section(t("backtest.title"))
    try:
        runs = {str(each["id"]): each for each in session.reader.runs() if each.get("step")}
    except TrainmasterError as error:
        session.refusal(error)
        return
    source = st.segmented_control(
        t("backtest.on"),
        ON,
        default="one",
        required=True,
        format_func=lambda name: t(f"backtest.on.{name}"),
        key=f"{key}:on",
        label_visibility="collapsed",
    )
    body = _sources(session, str(source), runs, key, run)
    pressed = st.button(t("backtest.do"), key="rule-try", disabled=rule is None or not body)
    if pressed and rule is not None:
        st.session_state.pop(f"{key}:tried", None)
        asked = {"rules": [rule.to_json()], "curves": True, **body}
        try:
            with st.spinner(t("backtest.doing")):
                found = session.patient_api.post("/v1/backtest", asked)
        except TrainmasterError as error:
            session.refusal(error)
            return
        st.session_state[f"{key}:tried"] = (rule.to_json(), found)
    tried = st.session_state.get(f"{key}:tried")
    if tried is None:
        return
    if rule is None or tried[0] != rule.to_json():
        banner("info", t("backtest.outdated"))
        return
    _tell_all(session, tried[1], key)


def _sources(session: Session, source: str, runs: dict[str, Json], key: str, run: str) -> Json:
    """Return on what it is to be tried, as the API is told; empty where nothing is chosen."""
    t = session.t
    newest = list(runs)[:MOST_RUNS]
    if source == "all":
        st.caption(t("backtest.all", count=len(newest)))
        return {"runs": newest} if newest else {}
    if source == "csv":
        file = st.file_uploader(
            t("backtest.csv"), type=["csv"], key=f"{key}:csv", max_upload_size=64
        )
        st.caption(t("backtest.csv.help"))
        if file is None:
            return {}
        return {"csv": [{"name": file.name, "text": file.getvalue().decode("utf-8", "replace")}]}
    chosen = st.selectbox(
        t("backtest.runs"),
        newest,
        index=newest.index(run) if run in newest else 0 if newest else None,
        format_func=lambda each: f"{runs[each].get('name') or each} ({each})",
        placeholder=t("backtest.runs"),
        key=f"{key}:runs",
    )
    return {"runs": [chosen]} if chosen else {}


def _tell_all(session: Session, found: Sequence[Json], key: str) -> None:
    t = session.t
    if len(found) > 1:
        total = sum(len(each.get("findings") or []) for each in found)
        steps = sum(int(each.get("steps") or 0) for each in found)
        banner(
            "warn" if total else "good",
            t(
                "backtest.total",
                sources=len(found),
                count=total,
                steps=number(steps),
                rate=number(1e4 * total / steps if steps else 0.0, 3),
            ),
        )
    quiet = [each for each in found if not each.get("findings")]
    for place, source in enumerate(each for each in found if each.get("findings")):
        _tell(session, source, f"{key}-{place}")
    if len(found) == 1:
        for source in quiet:
            _tell(session, source, f"{key}-quiet")
    elif quiet:
        st.text(t("backtest.quiet", sources=", ".join(str(each["source"]) for each in quiet)))


def _tell(session: Session, source: Json, key: str) -> None:
    t = session.t
    findings: list[Json] = source.get("findings") or []
    told = t(
        "backtest.found",
        source=source["source"],
        steps=number(source.get("steps")),
        count=len(findings),
        destructive=number(source.get("destructive")),
        rate=number(source.get("per_10k_steps"), 3),
    )
    banner("warn" if findings else "good", told)
    for why in (source.get("not_applicable_because") or {}).values():
        st.text(t("backtest.not_applicable", why=why))
    _curve(session, source, findings, key)
    if findings:
        table(
            [
                Column("bad", t("column.first_bad_step"), "right"),
                Column("fired", t("column.fired_step"), "right"),
                Column("resolved", t("column.resolved_step"), "right"),
                Column("action", t("column.would_do")),
                Column("because", t("column.because")),
            ],
            [_finding(session, each, place) for place, each in enumerate(findings[:MOST_MARKS])],
            key=f"findings-{key}",
            caption=t("backtest.title"),
            empty="",
        )


def _finding(session: Session, finding: Json, place: int) -> Row:
    return Row(
        str(place),
        {
            "bad": number(finding.get("first_bad_step")),
            "fired": number(finding.get("fired_step")),
            "resolved": number(finding.get("resolved_step")),
            "action": cell(str(finding.get("action") or session.t("rules.no_actions"))),
            "because": str(finding.get("because") or ""),
        },
    )


def _curve(session: Session, source: Json, findings: Sequence[Json], key: str) -> None:
    """Show what the rule looked at, with where it would have fired."""
    curve = source.get("curve")
    if not curve:
        return
    metric = str(curve["metric"])
    lines = [(str(each["scope"]), Series.read(each)) for each in curve["lines"]]
    marks = [
        Mark(
            int(each["fired_step"]),
            "alert",
            session.t("backtest.mark", action=each.get("action") or NOTHING),
            line=True,
        )
        for each in findings[:MOST_MARKS]
        if each.get("fired_step") is not None
    ]
    known = metric in BY_NAME or metric in DERIVED
    panel = overlay_panel(
        metric,
        session.t.word("metric", metric),
        unit(metric) if known else "",
        lines,
        words=words(session),
        extent=extent([series for _, series in lines]),
        marks=marks,
        revision=f"{key}-{len(marks)}",
    )
    charts([panel], key=f"curve-{key}", revision=str(source["source"]), t=session.t)
