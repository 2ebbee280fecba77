"""The rules that judge runs: what each watches for, what it does, and how to change it."""

from __future__ import annotations

import json
from urllib.parse import quote

import streamlit as st
import yaml

from dashboard import states
from dashboard.data import Json
from dashboard.session import Session
from dashboard.views import go
from dashboard.views.submit import tell_problems
from dashboard.widgets.table import Column, Row, action, actions, cell, table
from dashboard.widgets.text import title
from trainmaster.document import parse
from trainmaster.errors import SpecError, TrainmasterError
from trainmaster.rule import Rule

COMMANDS = """trainmaster rules add FILE
trainmaster rules edit NAME --set mode=act"""


def show(session: Session) -> None:
    """Show all rules and how to change them."""
    title(session.t("rules.title"), small=session.t("rules.lead"))
    wanted = go.dialog_asked()
    if wanted is not None and wanted["kind"] == "rule":
        st.dialog(session.t("rules.edit.title"), width="medium")(_edit)(session, wanted["about"])
    session.live(lambda: _rules(session), key="rules", every_s=session.refresh_s)
    st.text(session.t("rules.how"))
    st.code(COMMANDS, language="bash")


def _rules(session: Session) -> None:
    t = session.t
    columns = [
        Column("rule", t("column.rule")),
        Column("enabled", t("column.enabled")),
        Column("mode", t("column.mode")),
        Column("when", t("column.when")),
        Column("actions", t("column.ladder")),
        Column("do", t("column.do")),
    ]
    pressed = None
    with session.guarded():
        session.tell_refused("rules")
        pressed = table(
            columns,
            [_row(session, rule) for rule in session.reader.rules()],
            key="rules-table",
            caption=t("rules.title"),
            empty=t("rules.empty"),
        )
    if pressed is None:
        return
    if pressed.verb == "edit":
        go.to_dialog("rule", pressed.id)
    path = f"{_path(pressed.id)}/{pressed.verb}"
    session.act("rules", lambda: session.api.post(path, {}))
    st.rerun(scope="fragment")


def _row(session: Session, rule: Json) -> Row:
    t = session.t
    enabled = bool(rule.get("enabled", True))
    severity = str(rule.get("severity"))
    shown = states.look(states.SEVERITY, severity)
    looks_only = session.role == "viewer"
    ladder = [
        f"{rung}. {told(step, 'action')}" for rung, step in enumerate(rule.get("actions") or [], 1)
    ]
    return Row(
        str(rule["name"]),
        {
            "rule": cell(str(rule["name"]), sub=str(rule.get("description") or "")),
            "enabled": cell(
                t("rules.on" if enabled else "rules.off"),
                icon="✔" if enabled else "–",
                tone="good" if enabled else "quiet",
                sub=f"{shown.icon} {t.word('severity', severity)}",
            ),
            "mode": t.word("rules.mode", str(rule.get("mode"))),
            "when": cell(
                f"{rule.get('metric')} · {told(rule.get('when') or {}, 'condition')}",
                sub=t("rules.for", what=plain(rule["for"])) if rule.get("for") else "",
            ),
            "actions": "\n".join(ladder) or t("rules.no_actions"),
            "do": actions(
                action("edit", t("rules.edit"), disabled=looks_only),
                action(
                    "disable" if enabled else "enable",
                    t("rules.disable" if enabled else "rules.enable"),
                    disabled=looks_only,
                ),
            ),
        },
        faded=not enabled,
    )


def _edit(session: Session, name: str) -> None:
    t = session.t
    try:
        stored: Json = session.api.get(_path(name))
    except TrainmasterError as error:
        session.refusal(error)
        return
    seen = st.session_state.setdefault(f"rule-version:{name}", stored.get("version"))
    text = st.text_area(
        t("rules.edit.text"), value=_as_text(stored), height=380, key=f"rule:{name}"
    )
    if not st.button(t("rules.edit.do"), type="primary", key="rule-save"):
        return
    try:
        rule = parse(Rule, text or "")
        session.api.put(_path(name), {**rule.to_json(), "version": seen})
    except SpecError as error:
        tell_problems(session, error)
    except TrainmasterError as error:
        session.refusal(error)
    else:
        st.session_state.pop(f"rule-version:{name}")
        session.forget_reads()
        st.rerun()


def _as_text(stored: Json) -> str:
    """Return a stored rule as its file would have it, without what only the database knows."""
    known = {field.alias or name for name, field in Rule.model_fields.items()}
    told_only = {key: value for key, value in stored.items() if key in known}
    return yaml.safe_dump(told_only, sort_keys=False, allow_unicode=True)


def _path(name: str) -> str:
    return f"/v1/rules/{quote(name, safe='')}"


def told(step: Json, name: str) -> str:
    """Return a condition or an action as `name (key value, ...)`."""
    rest = {key: value for key, value in step.items() if key != name}
    return f"{step.get(name)} ({plain(rest)})" if rest else str(step.get(name))


def plain(values: Json) -> str:
    """Return a mapping as `key value, ...`."""
    return ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
        if value is not None
    )
