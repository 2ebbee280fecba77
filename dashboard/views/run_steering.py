"""The buttons of a run, and what others have asked of it."""

from __future__ import annotations

import streamlit as st

from dashboard.data import Json
from dashboard.formats import instant
from dashboard.session import Session
from dashboard.steering import (
    VERBS,
    Desk,
    Kind,
    Verb,
    shown_as,
    verb,
)
from dashboard.views import go
from dashboard.widgets.text import banner


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
    """Say what was refused here, and learn how far what was asked here has come."""
    run_id = str(run["id"])
    session.tell_refused(f"run:{run_id}")
    desk(session, run_id).learn(session.reader.requests(run_id))
