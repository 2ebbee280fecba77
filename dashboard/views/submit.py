"""Submitting a run: a spec as text, its problems with their lines, and the run that came of it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import streamlit as st

from dashboard.data import Json
from dashboard.session import Session
from dashboard.views import go
from dashboard.widgets.text import banner, problems, title
from trainmaster.document import parse, read, with_lines
from trainmaster.errors import SpecError, TrainmasterError
from trainmaster.spec import RunSpec

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stdlib_gpt.yaml"


def show(session: Session) -> None:
    """Show the form; a spec with problems is kept in it, with what is to be mended below."""
    t = session.t
    title(t("submit.title"), small=t("submit.lead"))
    with st.form("submit"):
        text = st.text_area(t("submit.spec"), value=example(), height=460, key="submit-spec")
        pressed = st.form_submit_button(
            t("submit.do"), type="primary", disabled=session.role == "viewer"
        )
    if not pressed:
        return
    try:
        with st.spinner(t("submit.doing")):
            run = _submit(session, text or "")
    except SpecError as error:
        tell_problems(session, error)
    except TrainmasterError as error:
        session.refusal(error)
    else:
        go.to_run(session, str(run["id"]))


def tell_problems(session: Session, error: SpecError, heading: str = "submit.problems") -> None:
    """Show all problems of a document, each with its line; `heading` is the key of what is said
    first.
    """
    t = session.t
    banner("bad", t(heading, count=len(error.problems)))
    problems(
        [
            f"{t('submit.line', line=each.line)}: {each}" if each.line else str(each)
            for each in error.problems
        ]
    )


def _submit(session: Session, text: str) -> Json:
    """Submit once, however often it is pressed for the same text; return the run."""
    parse(RunSpec, text)
    key = sha256(f"{session.memory.setdefault('submit-salt', uuid4().hex)}{text}".encode())
    try:
        run: Json = session.patient_api.post(
            "/v1/runs", {"spec": text, "idempotency_key": key.hexdigest()}
        )
    except SpecError as error:
        raise with_lines(error, read(text)) from error
    session.memory.pop("submit-salt")
    return run


def example() -> str:
    """Return the example's spec, or nothing where it is not installed."""
    try:
        return _EXAMPLE.read_text(encoding="utf-8")
    except OSError:
        return ""
