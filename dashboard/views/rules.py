"""The rules that judge runs: what each watches for, what it does, and how to change it."""

from __future__ import annotations

import json
from urllib.parse import quote

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.session import Session
from dashboard.sought import holds
from dashboard.views import go, rule_dialog
from dashboard.widgets.table import Column, Row, action, actions, cell, table
from dashboard.widgets.text import title

MODES = ("observe", "ask", "act")
COMMANDS = """trainmaster rules add FILE
trainmaster rules edit NAME --set mode=act"""


def show(session: Session) -> None:
    """Show all rules and how to change them."""
    title(session.t("rules.title"), small=session.t("rules.lead"))
    wanted = go.dialog_asked() or _linked()
    if wanted is not None and wanted["kind"] == "rule":
        rule_dialog.open_for(session, wanted["about"], wanted["detail"])
    if st.button(session.t("rules.add"), disabled=session.role == "viewer"):
        go.to_dialog("rule", "")
    sought = st.text_input(session.t("rules.sought"), key="rules-sought") or ""
    session.live(lambda: _rules(session, sought), key="rules", every_s=session.refresh_s)
    st.text(session.t("rules.how"))
    st.code(COMMANDS, language="bash")


def _linked() -> dict[str, str] | None:
    """Return the rule that the address names, once, and the run that it is to be tried on."""
    rule, run = st.query_params.pop("rule", None), st.query_params.pop("try", "")
    return None if rule is None else {"kind": "rule", "about": str(rule), "detail": str(run)}


def _rules(session: Session, sought: str) -> None:
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
            [
                _row(session, rule)
                for rule in session.reader.rules()
                if holds(json.dumps(rule, ensure_ascii=False), sought)
            ],
            key="rules-table",
            caption=t("rules.title"),
            empty=t("rules.empty"),
        )
    if pressed is None:
        return
    if pressed.verb == "edit":
        go.to_dialog("rule", pressed.id)
    path = f"/v1/rules/{quote(pressed.id, safe='')}"
    if pressed.verb in MODES:
        session.act("rules", lambda: session.api.patch(path, {"set": {"mode": pressed.verb}}))
    else:
        session.act("rules", lambda: session.api.post(f"{path}/{pressed.verb}", {}))
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
            "mode": actions(
                *(
                    action(
                        mode,
                        t.word("rules.mode", mode),
                        disabled=looks_only or mode == rule.get("mode"),
                        title=t(f"rules.mode.help.{mode}"),
                        kind="tm-chosen" if mode == rule.get("mode") else "",
                    )
                    for mode in MODES
                )
            ),
            "when": cell(
                f"{rule.get('metric')} · {told(rule.get('when') or {}, 'condition')}",
                sub=t("rules.for", what=plain(rule["for"])) if rule.get("for") else "",
            ),
            "actions": "\n".join(ladder) or t("rules.no_actions"),
            "do": actions(
                action("edit", t("rules.look" if looks_only else "rules.edit")),
                action(
                    "disable" if enabled else "enable",
                    t("rules.disable" if enabled else "rules.enable"),
                    disabled=looks_only,
                ),
            ),
        },
        faded=not enabled,
    )


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
