"""The buttons of a run, and what became of those that were pressed."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.data import Json
from dashboard.formats import instant
from dashboard.session import Session
from dashboard.steering import (
    VERBS,
    Desk,
    Kind,
    Verb,
    applied_step,
    attempt_of_restore,
    first_new_step,
    is_final,
    progress,
    ranks_past,
    ranks_told,
    shown_as,
    verb,
)
from dashboard.views import go
from dashboard.widgets.text import banner

_MOST_SHOWN = 4


def desk(session: Session, run_id: str) -> Desk:
    """Return what this browser has asked of the run."""
    return Desk(session.api, run_id, session.memory)


def buttons(session: Session, run: Json) -> None:
    """Show a button for each verb; those that the state does not allow say why."""
    with st.container(horizontal=True, key="steer"):
        for kind in VERBS:
            _button(session, run, _verb(session, run, kind))


def _verb(session: Session, run: Json, kind: Kind) -> Verb:
    return verb(kind, str(run["state"]), session.role)


def _button(session: Session, run: Json, told: Verb) -> None:
    t = session.t
    why = t(told.reason, state=t.word("run.state", str(run["state"]))) if told.reason else ""
    pressed = st.button(
        t(f"steer.{told.kind}"),
        key=f"steer-{told.kind}",
        disabled=not told.enabled,
        help=why or t(f"steer.help.{told.kind}"),
    )
    if not pressed:
        return
    if told.kind == "stop":
        go.to_dialog("stop", str(run["id"]))
    send(session, run, told.kind, {})


def send(session: Session, run: Json, kind: Kind, args: Json, why: str = "") -> bool:
    """Ask for `kind` of the run as it was shown; return whether it was taken."""
    run_id = str(run["id"])
    ask = desk(session, run_id).ask
    return session.act(f"run:{run_id}", lambda: ask(kind, args, seen=run, why=why))


def others(session: Session, run_id: str) -> None:
    """Tell what others have asked that is still to come, before one presses anything."""
    t = session.t
    for request in desk(session, run_id).others(session.reader.requests(run_id)):
        banner(
            "info",
            t(
                "steer.other",
                actor=request.get("actor") or "?",
                ago=session.formats.ago(instant(request.get("created_at")), session.now()),
                what=t.word("steer", shown_as(request)),
                why=f" ({request['why']})" if request.get("why") else "",
            ),
        )


def asked(session: Session, run: Json) -> None:
    """Show the newest requests of anyone: sent, received, applied at a step, or refused and why."""
    run_id = str(run["id"])
    session.tell_refused(f"run:{run_id}")
    requests = session.reader.requests(run_id)
    desk(session, run_id).learn(requests)
    if requests:
        lines = "".join(
            f"<li>{_line(session, request, run)}</li>" for request in requests[:_MOST_SHOWN]
        )
        st.html(f'<ul class="tm-asks" aria-live="polite">{lines}</ul>')


def _line(session: Session, request: Json, run: Json) -> str:
    t = session.t
    reached = progress(request)
    last = "refused" if "refused" in reached else "applied"
    stations = []
    for station in ("sent", "received", last):
        if station == "received" and last == "refused":
            continue
        css = "todo" if station not in reached else "refused" if station == "refused" else "done"
        mark = {"todo": "○", "done": "✔", "refused": "✖"}[css]
        stations.append(
            f'<li class="{css}">{mark} {escape(_station(session, station, request, run))}</li>'
        )
    if request.get("kind") == "restore" and last != "refused":
        stations.append(_first_step(session, request, run))
    arrow = '<li aria-hidden="true">→</li>'
    state = escape(str(request.get("state")))
    name = escape(t.word("steer", shown_as(request)))
    by = escape(
        t(
            "steer.by",
            actor=request.get("actor") or "?",
            ago=session.formats.ago(instant(request.get("created_at")), session.now()),
        )
    )
    return (
        f'<span data-request-state="{state}"><b>{name}</b> {by}</span>'
        f"<ol>{arrow.join(stations)}</ol>"
    )


def _first_step(session: Session, request: Json, run: Json) -> str:
    """Return the last station of a restore: that training goes on."""
    t, attempt = session.t, attempt_of_restore(request, run)
    step = None if attempt is None else first_new_step(attempt)
    if step is None:
        return f'<li class="todo">○ {escape(t("steer.first_step"))}</li>'
    return f'<li class="done">✔ {escape(t("steer.first_step_at", step=step))}</li>'


def _station(session: Session, station: str, request: Json, run: Json) -> str:
    t = session.t
    count = ranks_told(request, run)
    if station == "refused":
        order = request.get("order") or {}
        return t("steer.refused", because=request.get("because") or order.get("because") or "")
    step = applied_step(request)
    if station == "applied" and step is not None and is_final(request):
        told = t("steer.applied_at", step=step)
        if count is None:
            return told
        return f"{told} {t('steer.applied_by', ranks=ranks_past(request, run), count=count)}"
    if station == "received" and station in progress(request) and count is not None:
        return t("steer.received_by", count=count)
    return t(f"steer.{station}")
