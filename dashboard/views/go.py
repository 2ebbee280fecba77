"""Moving between pages within a session, and opening dialogs."""

from __future__ import annotations

from typing import Any, NoReturn

import streamlit as st

from dashboard.session import Session


def to_run(session: Session, run: str) -> NoReturn:
    """Open the page of one run."""
    _switch(session, "run", {"run": run})


def to(session: Session, page: str) -> NoReturn:
    """Open a page by its address."""
    _switch(session, page, {})


def _switch(session: Session, page: str, query: dict[str, str]) -> NoReturn:
    st.session_state["go"] = (page, {**query, "lang": session.t.language})
    st.rerun(scope="app")


def to_dialog(kind: str, about: str, detail: str = "") -> NoReturn:
    """Let the page open a dialog about this run or rule, whatever rows move meanwhile.

    `detail` names the checkpoint, incident or rule of the run that it is about.
    """
    st.session_state["dialog"] = {"kind": kind, "about": about, "detail": detail}
    st.rerun(scope="app")


def dialog_asked() -> dict[str, Any] | None:
    """Return the dialog that was asked for, once."""
    wanted: dict[str, Any] | None = st.session_state.pop("dialog", None)
    return wanted
