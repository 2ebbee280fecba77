"""The audit log: who asked for what, when and why."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard.data import Json
from dashboard.formats import instant
from dashboard.session import Session
from dashboard.sought import holds
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import title
from trainmaster.errors import TrainmasterError

MOST_SHOWN = 300


def show(session: Session) -> None:
    """Show the newest entries, those that hold what is looked for."""
    t = session.t
    title(t("audit.title"), small=t("audit.lead"))
    actor, action, sought = _filters(session)

    def entries() -> None:
        _entries(session, actor, action, sought)

    session.live(entries, key="audit", every_s=session.refresh_s)


def _filters(session: Session) -> tuple[str | None, str | None, str]:
    """Return who, what and which words are looked for; None for all."""
    t = session.t
    try:
        known = session.reader.audit()
    except TrainmasterError:
        known = []
    left, middle, right = st.columns([1, 1, 2])
    actor = left.selectbox(
        t("column.actor"),
        [None, *sorted({str(each.get("actor") or "") for each in known})],
        format_func=lambda each: t("audit.anyone") if each is None else each,
        key="audit-actor",
    )
    action = middle.selectbox(
        t("column.what"),
        [None, *sorted({str(each.get("action") or "") for each in known})],
        format_func=lambda each: t("audit.anything") if each is None else t.word("event", each),
        key="audit-action",
    )
    return actor, action, right.text_input(t("audit.filter"), key="audit-filter") or ""


def _entries(session: Session, actor: str | None, action: str | None, sought: str) -> None:
    t = session.t
    with session.guarded():
        entries = [
            each
            for each in session.reader.audit()
            if actor in {None, each.get("actor")}
            and action in {None, each.get("action")}
            and holds(_text(each), sought)
        ]
        table(
            [
                Column("at", t("column.time"), "right"),
                Column("actor", t("column.actor")),
                Column("action", t("column.what")),
                Column("target", t("column.target")),
                Column("why", t("column.because")),
            ],
            [_row(session, each) for each in entries[:MOST_SHOWN]],
            key="audit-table",
            caption=t("audit.title"),
            empty=t("audit.empty"),
        )


def _row(session: Session, entry: Json) -> Row:
    return Row(
        str(entry["id"]),
        {
            "at": session.formats.clock(instant(entry.get("at")), session.now()),
            "actor": str(entry.get("actor") or ""),
            "action": session.t.word("event", str(entry.get("action") or "")),
            "target": cell(str(entry.get("target") or ""), code=True),
            "why": cell(str(entry.get("why") or ""), sub=particulars(entry.get("data"))),
        },
    )


def particulars(data: Mapping[str, object] | None) -> str:
    """Return what an entry carries besides its words, less what was left open."""
    return ", ".join(f"{key} {value}" for key, value in (data or {}).items() if value is not None)


def _text(entry: Json) -> str:
    return " ".join(str(value) for value in entry.values())
