"""Stopping a run: asked once with its consequence, and sent after a few seconds unless undone."""

from __future__ import annotations

import math
from typing import cast

import streamlit as st

from dashboard.data import Json
from dashboard.postponed import Postponed
from dashboard.session import Session
from dashboard.views import run_steering
from dashboard.widgets.text import banner

LOOK_S = 1.0


def ask(session: Session, run: Json) -> None:
    """Ask once, in a dialog."""
    t, run_id = session.t, str(run["id"])
    run_steering.others(session, run_id)
    st.text(t("stop.what", name=run.get("name") or run_id))
    keep = st.checkbox(t("stop.checkpoint"), value=True, key="stop-checkpoint")
    if not keep:
        banner("warn", t("stop.lost", steps=_steps_since_checkpoint(session, run)))
    why = st.text_input(t("dialog.why"), key="stop-why")
    if st.button(t("stop.do"), type="primary", key="stop-do"):
        session.memory[_place(run_id)] = Postponed(
            {"checkpoint": keep}, why or "", run, session.now()
        )
        st.rerun()


def every_s(session: Session, run_id: str) -> float | None:
    """Return how often to look whether a stop is due; None where none was pressed."""
    stop = _pressed(session, run_id)
    moves = stop is not None and stop.standing(session.now()) in {"waits", "due"}
    return LOOK_S if moves else None


def waiting(session: Session, run_id: str) -> None:
    """Show a stop that was pressed, with its undo, and send it when it is due."""
    t, stop = session.t, _pressed(session, run_id)
    if stop is None:
        return
    standing = stop.standing(session.now())
    if standing in {"left", "past"}:
        if standing == "left":
            banner("warn", t("stop.left"))
        else:
            _forget(session, run_id)
        return
    left_s = math.ceil(stop.left_s(session.now()))
    banner("warn", t("stop.waits", seconds=left_s))
    undone = st.button(t("stop.undo"), type="primary", key="stop-undo")
    if not undone and standing == "waits":
        return
    _forget(session, run_id)
    if not undone:
        run_steering.send(session, stop.seen, "stop", stop.args, stop.why)
    st.rerun()


def _steps_since_checkpoint(session: Session, run: Json) -> int:
    saved = [
        int(checkpoint["step"])
        for checkpoint in session.reader.checkpoints(str(run["id"]))
        if checkpoint["state"] in {"committed", "trusted"} and not checkpoint.get("abandoned")
    ]
    return max(0, int(run.get("step") or 0) - max(saved, default=0))


def _pressed(session: Session, run_id: str) -> Postponed | None:
    return cast("Postponed | None", session.memory.get(_place(run_id)))


def _forget(session: Session, run_id: str) -> None:
    session.memory.pop(_place(run_id), None)


def _place(run_id: str) -> str:
    return f"stop:{run_id}"
