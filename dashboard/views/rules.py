"""The rules that judge runs: what each watches for, and what it does."""

from __future__ import annotations

import json

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.session import Session
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import title

COMMANDS = """trainmaster rules show NAME
trainmaster rules edit NAME --set mode=act
trainmaster rules disable NAME"""


def show(session: Session) -> None:
    """Show all rules and how to change them."""
    title(session.t("rules.title"), small=session.t("rules.lead"))
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
    ]
    with session.guarded():
        table(
            columns,
            [_row(session, rule) for rule in session.reader.rules()],
            key="rules-table",
            caption=t("rules.title"),
            empty=t("rules.empty"),
        )


def _row(session: Session, rule: Json) -> Row:
    t = session.t
    enabled = bool(rule.get("enabled", True))
    severity = str(rule.get("severity"))
    shown = states.look(states.SEVERITY, severity)
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
                f"{rule.get('metric')} · {condition(rule.get('when') or {})}",
                sub=t("rules.for", what=plain(rule["for"])) if rule.get("for") else "",
            ),
            "actions": "\n".join(
                f"{rung}. {condition(action, 'action')}"
                for rung, action in enumerate(rule.get("actions") or [], start=1)
            )
            or t("rules.no_actions"),
        },
        faded=not enabled,
    )


def condition(told: Json, name: str = "condition") -> str:
    """Return a condition or an action as `name (key value, ...)`."""
    rest = {key: value for key, value in told.items() if key != name}
    return f"{told.get(name)} ({plain(rest)})" if rest else str(told.get(name))


def plain(told: Json) -> str:
    """Return a mapping as `key value, ...`."""
    return ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in told.items()
        if value is not None
    )
