"""Dialogs about incidents and alerts: the story of one, the answer to one that asks, and silence.

They are opened from a page itself: one opened within a fragment that reruns dies with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from html import escape
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.formats import instant, number
from dashboard.session import Session
from dashboard.stories import ACTIONS, Chapter, story, terms
from dashboard.widgets.text import banner, facts
from trainmaster.errors import TrainmasterError

KINDS = frozenset({"incident", "silence"})
SILENCE_S: Mapping[str, int] = {"1h": 3600, "2h": 7200, "8h": 28_800, "1d": 86_400, "7d": 604_800}
HELPED: Mapping[bool | None, str] = {True: "helped", False: "not_helped", None: "unknown"}
THEN = ("act", "dismiss", "keep")
_BEFORE = timedelta(minutes=1)
"""What led to an incident is told a moment before it is opened."""


def open_asked(session: Session, wanted: Mapping[str, Any]) -> None:
    """Open the dialog that was asked for, if it is one of these."""
    t = session.t
    if wanted["kind"] == "incident":
        st.dialog(t("incident.title"), width="large")(_incident)(session, wanted["detail"])
    elif wanted["kind"] == "silence":
        st.dialog(t("silence.title"))(_silence)(session, wanted["about"], wanted["detail"])


def _incident(session: Session, incident_id: str) -> None:
    t = session.t
    try:
        incident: Json = session.api.get(f"/v1/incidents/{quote(incident_id, safe='')}")
        opened = instant(incident.get("opened_at")) or session.now()
        events = session.reader.events_since(str(incident["run"]), opened - _BEFORE)
    except TrainmasterError as error:
        session.refusal(error)
        return
    state = str(incident.get("state"))
    shown = states.look(states.INCIDENT, state)
    facts(
        [
            (t("column.state"), f"{shown.icon} {t.word('incident.state', state)}"),
            (t("column.rule"), str(incident.get("rule") or "")),
            (t("column.run"), str(incident["run"])),
            (t("column.first_bad_step"), number(incident.get("first_bad_step"))),
            (t("column.mttr"), session.formats.duration(incident.get("mttr_s"))),
        ]
    )
    if incident.get("drill"):
        banner("info", t("incident.drill"))
    lines = "".join(_chapter(session, each, incident) for each in story(incident, events))
    st.html(f'<ol class="tm-story">{lines}</ol>')
    if incident.get("proposed"):
        _answer(session, incident)


def _chapter(session: Session, chapter: Chapter, incident: Json) -> str:
    t = session.t
    at = instant(chapter.at)
    undated = "" if chapter.part == "beside" else t("incident.now")
    clock = undated if at is None else session.formats.clock(at, session.now())
    lines = [chapter.because] if chapter.because else []
    if chapter.part == "probation":
        found = terms(incident.get("verification") or {})
        lines += [t(f"incident.term.{each.name}", **each.values) for each in found]
    lines += [t("incident.rejected", what=each) for each in chapter.rejected]
    told = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return (
        f'<li data-part="{chapter.part}"><time>{escape(clock)}</time>'
        f"<div><b>{escape(_heading(session, chapter))}</b>{told}</div></li>"
    )


def _heading(session: Session, chapter: Chapter) -> str:
    t = session.t
    if chapter.part == "sign":
        return t("incident.part.sign", rule=chapter.kind, step=number(chapter.step))
    if chapter.part == "beside":
        return t("incident.part.beside", rule=chapter.kind, step=number(chapter.step))
    if chapter.part == "event":
        return t.word("event", chapter.kind) if chapter.kind else t("column.because")
    if chapter.part == "tried":
        return t(f"incident.tried.{HELPED[chapter.helped]}", action=chapter.kind)
    if chapter.part == "asked":
        return t("incident.part.asked", action=chapter.kind)
    if chapter.part == "probation":
        return t("incident.part.probation")
    if chapter.part == "answered":
        return t("incident.part.answered", how=t.word("event", chapter.kind))
    return t("incident.part.end", how=t.word("incident.closed_as", chapter.kind))


def _answer(session: Session, incident: Json) -> None:
    t = session.t
    proposed: Json = incident["proposed"]
    action = str((proposed.get("action") or {}).get("action"))
    by = instant(proposed.get("answer_by"))
    then = str(proposed.get("then"))
    if by is not None:
        at = session.formats.clock(by, session.now())
        banner("warn", t("incident.deadline", at=at, then=t.word("incident.then", then)))
    if session.role == "viewer":
        st.text(t("steer.why.viewer"))
        return
    others = [each for each in ACTIONS if each != action]
    chosen = st.selectbox(
        t("incident.action"),
        [action, *others],
        key="incident-action",
        help=t("incident.action.help"),
    )
    why = st.text_input(t("dialog.why"), key="incident-why") or ""
    body: Json = {"why": why} | ({"action": chosen} if chosen != action else {})
    with st.container(horizontal=True):
        approved = st.button(
            t("incident.approve", action=chosen), type="primary", key="incident-approve"
        )
        dismissed = st.button(t("incident.dismiss"), key="incident-dismiss")
    if approved:
        _send(session, incident, "approve", body)
    elif dismissed:
        _send(session, incident, "dismiss", {"why": why})


def _send(session: Session, incident: Json, verb: str, body: Json) -> None:
    """Answer once, however often it is pressed on the same proposal."""
    name = f"answer:{incident['id']}:{incident['proposed'].get('at')}:{verb}:{body.get('action')}"
    key = session.memory.setdefault(name, uuid4().hex)
    path = f"/v1/incidents/{quote(str(incident['id']), safe='')}/{verb}"
    try:
        session.api.post(path, {**body, "idempotency_key": key})
    except TrainmasterError as error:
        session.refusal(error)
        return
    session.forget_reads()
    st.rerun()


def _silence(session: Session, run: str, rule: str) -> None:
    t = session.t
    st.text(t("silence.what", rule=rule))
    length = st.selectbox(
        t("silence.for"),
        list(SILENCE_S),
        index=1,
        format_func=lambda name: t(f"silence.for.{name}"),
        key="silence-for",
    )
    everywhere = st.checkbox(t("silence.everywhere"), key="silence-everywhere")
    why = st.text_input(t("dialog.why"), key="silence-why") or ""
    if not st.button(t("silence.do"), type="primary", key="silence-do"):
        return
    body: Json = {"rule": rule, "for_s": SILENCE_S[str(length)], "why": why}
    if not everywhere:
        body["run"] = run
    try:
        session.api.post("/v1/silences", body)
    except TrainmasterError as error:
        session.refusal(error)
        return
    session.forget_reads()
    st.rerun()
