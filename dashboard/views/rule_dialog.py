"""The dialog of one rule: its text, what is wrong with it, what it would have done, its history."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import streamlit as st
import yaml

from dashboard.charts.marks import Mark
from dashboard.charts.panels import run_panel
from dashboard.charts.series import extent, lineage
from dashboard.data import Json
from dashboard.formats import NOTHING, instant, number
from dashboard.session import Session
from dashboard.tails import Wanted, read_all
from dashboard.views.run_charts import words
from dashboard.views.submit import tell_problems
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import banner, section
from trainmaster.document import parse
from trainmaster.errors import SpecError, TrainmasterError
from trainmaster.metrics import BY_NAME, DERIVED
from trainmaster.rule import Rule

NEW = """name: my_rule
metric: loss
when: {condition: above, value: 5}
for: {steps: 3}
severity: warning
mode: observe
actions: []
description: What it watches for, and why.
"""
MOST_RUNS = 20
MOST_MARKS = 200


def open_for(session: Session, name: str) -> None:
    """Open the dialog of a stored rule, or of a new one where `name` is empty."""
    heading = session.t("rules.edit.title" if name else "rules.add.title")
    st.dialog(heading, width="large")(_dialog)(session, name)


def _dialog(session: Session, name: str) -> None:
    t = session.t
    stored: Json | None = None
    if name:
        try:
            stored = session.api.get(_path(name))
        except TrainmasterError as error:
            session.refusal(error)
            return
    key = f"rule-version:{name}"
    seen = st.session_state.setdefault(key, stored.get("version") if stored else None)
    text = st.text_area(
        t("rules.edit.text"),
        value=as_text(stored) if stored else NEW,
        height=320,
        key=f"rule:{name}",
    )
    rule = _read(session, text or "")
    looks_only = session.role == "viewer"
    pressed = st.button(
        t("rules.edit.do"), type="primary", key="rule-save", disabled=rule is None or looks_only
    )
    if pressed and rule is not None and _save(session, name, rule, seen):
        st.session_state.pop(key)
        session.forget_reads()
        st.rerun()
    section(t("backtest.title"))
    _try(session, name, rule)
    if stored:
        with st.expander(t("rules.history")):
            _history(session, name)


def _read(session: Session, text: str) -> Rule | None:
    """Return the rule, or tell everything that is wrong with it."""
    try:
        return parse(Rule, text)
    except SpecError as error:
        tell_problems(session, error, "rules.problems")
        return None


def _save(session: Session, name: str, rule: Rule, seen: int | None) -> bool:
    try:
        if name:
            session.api.put(_path(name), {**rule.to_json(), "version": seen})
        else:
            session.api.post("/v1/rules", {"rules": [rule.to_json()]})
    except SpecError as error:
        tell_problems(session, error, "rules.problems")
    except TrainmasterError as error:
        session.refusal(error)
    else:
        return True
    return False


def _try(session: Session, name: str, rule: Rule | None) -> None:
    """Let the rule be tried on stored runs or a CSV before it is saved, and show what it found."""
    t = session.t
    try:
        runs = {str(run["id"]): run for run in session.reader.runs() if run.get("step")}
    except TrainmasterError as error:
        session.refusal(error)
        return
    newest = list(runs)[:MOST_RUNS]
    chosen = st.multiselect(
        t("backtest.runs"),
        newest,
        default=newest[:1],
        format_func=lambda run: f"{runs[run].get('name') or run} ({run})",
        placeholder=t("backtest.runs"),
        key=f"try-runs:{name}",
    )
    csv = st.text_area(
        t("backtest.csv"), height=80, key=f"try-csv:{name}", help=t("backtest.csv.help")
    )
    ready = rule is not None and bool(chosen or (csv or "").strip())
    if st.button(t("backtest.do"), key="rule-try", disabled=not ready) and rule is not None:
        body: Json = {"rules": [rule.to_json()], "runs": chosen}
        if (csv or "").strip():
            body["csv"] = [{"name": t("backtest.pasted"), "text": csv}]
        try:
            with st.spinner(t("backtest.doing")):
                found = session.patient_api.post("/v1/backtest", body)
        except TrainmasterError as error:
            st.session_state.pop(f"tried:{name}", None)
            session.refusal(error)
            return
        st.session_state[f"tried:{name}"] = (rule.to_json(), found)
    tried = st.session_state.get(f"tried:{name}")
    if tried is not None and rule is not None and tried[0] == rule.to_json():
        for position, source in enumerate(tried[1]):
            _tell(session, rule, source, f"{name}-{position}", runs.get(str(source["source"])))


def _tell(session: Session, rule: Rule, source: Json, key: str, run: Json | None) -> None:
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
    if run is not None:
        _curve(session, rule, run, findings, key)


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


def _curve(session: Session, rule: Rule, run: Json, findings: Sequence[Json], key: str) -> None:
    """Show the rule's metric of a run with where it would have fired."""
    known = [metric for metric in rule.metrics if metric in BY_NAME or metric in DERIVED]
    if not known:
        return
    metric = known[0]
    try:
        [series] = read_all(session.reader, {}, run, [Wanted(metric)])
    except TrainmasterError as error:
        session.refusal(error)
        return
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
    panel = run_panel(
        metric,
        metric,
        (BY_NAME.get(metric) or DERIVED[metric]).unit,
        series,
        lineage(run.get("attempts") or []),
        words=words(session),
        marks=marks,
        extent=extent([series]),
        revision=f"{key}-{len(marks)}",
    )
    charts([panel], key=f"curve-{key}", revision=str(run["id"]), t=session.t)


def _history(session: Session, name: str) -> None:
    t = session.t
    try:
        versions = list(reversed(session.reader.get(f"{_path(name)}/history")))
    except TrainmasterError as error:
        session.refusal(error)
        return
    table(
        [
            Column("version", t("column.version"), "right"),
            Column("change", t("column.what")),
            Column("at", t("column.time"), "right"),
            Column("actor", t("column.actor")),
            Column("why", t("column.because")),
        ],
        [
            Row(
                str(each["version"]),
                {
                    "version": str(each["version"]),
                    "change": t.word("rules.change", str(each.get("change"))),
                    "at": session.formats.clock(instant(each.get("at")), session.now()),
                    "actor": str(each.get("actor") or ""),
                    "why": str(each.get("why") or ""),
                },
            )
            for each in versions
        ],
        key=f"history-{name}",
        caption=t("rules.history"),
        empty="",
    )


def as_text(stored: Json) -> str:
    """Return a stored rule as its file would have it, without what only the database knows."""
    known = {field.alias or name for name, field in Rule.model_fields.items()}
    told_only = {key: value for key, value in stored.items() if key in known}
    return yaml.safe_dump(told_only, sort_keys=False, allow_unicode=True)


def _path(name: str) -> str:
    return f"/v1/rules/{quote(name, safe='')}"
