"""The dialog of one rule: in a form or as text, what is wrong with it, what it would have done on
history, and who changed what.
"""

from __future__ import annotations

import difflib
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboard.data import Json
from dashboard.formats import instant
from dashboard.forms import as_text
from dashboard.session import Session
from dashboard.views import rule_form, rule_trial
from dashboard.views.written import Sheet, forget, tell_problems, write
from dashboard.widgets.table import Column, Row, cell, table
from trainmaster.document import parse
from trainmaster.errors import SpecError, TrainmasterError
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


def open_for(session: Session, name: str, run: str = "") -> None:
    """Open the dialog of a stored rule, or of a new one where `name` is empty; `run` is the run
    that it is tried on first.
    """
    heading = session.t("rules.edit.title" if name else "rules.add.title")
    st.dialog(heading, width="large")(_dialog)(session, name, run)


def _dialog(session: Session, name: str, run: str) -> None:
    t = session.t
    stored: Json | None = None
    if name:
        try:
            stored = session.api.get(_path(name))
        except TrainmasterError as error:
            session.refusal(error)
            return
    seen = st.session_state.setdefault(
        f"rule-seen:{name}", (stored.get("version"), stored_text(stored)) if stored else (None, NEW)
    )
    key = f"rule:{name}"
    written = write(
        session,
        Sheet(
            key,
            t("rules.edit.text"),
            seen[1],
            lambda text: parse(Rule, text),
            "rules.problems",
            rows=14,
            form=lambda document: rule_form.form(session, document, key=key),
        ),
    )
    rule = written.meaning
    looks_only = session.role == "viewer"
    pressed = st.button(
        t("rules.edit.do"), type="primary", key="rule-save", disabled=rule is None or looks_only
    )
    if pressed and rule is not None and _save(session, name, rule, seen[0]):
        st.session_state.pop(f"rule-seen:{name}")
        forget(session, key)
        session.forget_reads()
        st.rerun()
    rule_trial.show(session, rule, key=key, run=run)
    if stored:
        with st.expander(t("rules.history")):
            _history(session, name)


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


def _history(session: Session, name: str) -> None:
    t = session.t
    try:
        versions: list[Json] = session.reader.get(f"{_path(name)}/history")
    except TrainmasterError as error:
        session.refusal(error)
        return
    before = [None, *versions]
    rows = [
        Row(
            str(each["version"]),
            {
                "version": str(each["version"]),
                "change": t.word("rules.change", str(each.get("change"))),
                "at": session.formats.clock(instant(each.get("at")), session.now()),
                "actor": str(each.get("actor") or ""),
                "what": cell(difference(old, each), code=True),
                "why": str(each.get("why") or ""),
            },
        )
        for old, each in zip(before, versions, strict=False)
    ]
    table(
        [
            Column("version", t("column.version"), "right"),
            Column("change", t("column.what")),
            Column("at", t("column.time"), "right"),
            Column("actor", t("column.actor")),
            Column("what", t("column.changes")),
            Column("why", t("column.because")),
        ],
        rows[::-1],
        key=f"history-{name}",
        caption=t("rules.history"),
        empty="",
    )


def difference(old: Json | None, new: Json) -> str:
    """Return the lines that went (-) and came (+) between two versions of a rule."""
    if old is None or not old.get("body") or not new.get("body"):
        return ""
    lines = difflib.ndiff(
        stored_text(old["body"]).splitlines(), stored_text(new["body"]).splitlines()
    )
    return "\n".join(line for line in lines if line[:2] in {"- ", "+ "})


def stored_text(stored: Json) -> str:
    """Return a stored rule as its file would have it, without what only the database knows."""
    known = {field.alias or name for name, field in Rule.model_fields.items()}
    told_only: dict[str, Any] = {key: value for key, value in stored.items() if key in known}
    return as_text(told_only)


def _path(name: str) -> str:
    return f"/v1/rules/{quote(name, safe='')}"
