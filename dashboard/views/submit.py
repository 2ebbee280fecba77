"""Submitting a run: a spec from a template, in a form or as text, read while it is typed; the plan
that is to be expected; and the run that came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from uuid import uuid4

import streamlit as st

from dashboard.data import Json
from dashboard.forms import as_text
from dashboard.session import Session
from dashboard.views import go, plan_answer, spec_form
from dashboard.views.written import Sheet, Written, forget, tell_problems, write
from dashboard.widgets.text import title
from trainmaster.document import parse, read, with_lines
from trainmaster.errors import SpecError, TrainmasterError
from trainmaster.spec import RunSpec

TEMPLATES: Mapping[str, str] = {
    "example": "stdlib_gpt.yaml",
    "small": "one_process.yaml",
    "planned": "planned.yaml",
    "llama": "llama_bytes.yaml",
}
BROUGHT = "brought"
"""A spec that another page has brought here."""
MOST_RUNS = 20


def show(session: Session) -> None:
    """Show the form; a spec with problems is kept in it, with what is to be mended below."""
    t = session.t
    title(t("submit.title"), small=t("submit.lead"))
    try:
        begins = _template(session)
    except TrainmasterError as error:
        session.refusal(error)
        begins = example()
    written = write(session, sheet(session, "submit", begins))
    looks_only = session.role == "viewer"
    ready = written.meaning is not None and not looks_only
    with st.container(horizontal=True):
        pressed = st.button(t("submit.do"), type="primary", key="submit-do", disabled=not ready)
        planned = st.button(t("submit.plan"), key="submit-plan", disabled=written.meaning is None)
    if looks_only:
        st.text(t("steer.why.viewer"))
    if planned:
        plan_answer.ask(session, "submit", {"spec": written.text})
    if pressed:
        _send(session, written)
    plan_answer.show(session, "submit", spec=written.text, may_take=False)


def sheet(session: Session, key: str, begins: str) -> Sheet[RunSpec]:
    """Return what a spec is written on."""
    return Sheet(
        key,
        session.t("submit.spec"),
        begins,
        lambda text: parse(RunSpec, text),
        "submit.problems",
        form=lambda document: spec_form.form(session, document, key=key),
    )


def bring(session: Session, spec: str) -> None:
    """Open the page with this spec in it."""
    session.memory["brought"] = spec
    st.session_state["submit-template"] = BROUGHT
    go.to(session, "submit")


def _template(session: Session) -> str:
    """Return the text to begin with: of a template, of a run, or what another page has brought."""
    t = session.t
    runs = {f"run:{each['id']}": each for each in session.reader.runs()[:MOST_RUNS]}
    brought = session.memory.get("brought")
    asked = st.query_params.get("like")
    if asked and f"run:{asked}" in runs and "submit-template" not in st.session_state:
        st.session_state["submit-template"] = f"run:{asked}"

    def told(name: str) -> str:
        if name in runs:
            return t("submit.like", run=f"{runs[name].get('name')} ({runs[name]['id']})")
        return t(f"submit.template.{name}")

    names = [*([BROUGHT] if brought else []), *TEMPLATES, *runs]
    if st.session_state.get("submit-template") not in names:
        st.session_state.pop("submit-template", None)
    chosen = str(st.selectbox(t("submit.template"), names, format_func=told, key="submit-template"))
    if chosen == BROUGHT:
        return str(brought)
    if chosen in runs:
        return as_text(session.reader.run(str(runs[chosen]["id"])).get("spec") or {})
    return _file(TEMPLATES[chosen])


def _send(session: Session, written: Written[RunSpec]) -> None:
    try:
        with st.spinner(session.t("submit.doing")):
            run = _submit(session, written.text)
    except SpecError as error:
        tell_problems(session, error, "submit.problems")
    except TrainmasterError as error:
        session.refusal(error)
    else:
        forget(session, "submit")
        session.forget_reads()
        go.to_run(session, str(run["id"]))


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
    return _file(TEMPLATES["example"])


def planned() -> str:
    """Return the spec that leaves its plan to the planner."""
    return _file(TEMPLATES["planned"])


def _file(name: str) -> str:
    try:
        return (spec_form.EXAMPLES / name).read_text(encoding="utf-8")
    except OSError:
        return ""
