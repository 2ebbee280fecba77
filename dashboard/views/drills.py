"""Faults injected on purpose, where the control plane allows it."""

from __future__ import annotations

from typing import get_args
from urllib.parse import quote
from uuid import uuid4

import streamlit as st

from dashboard.data import Json
from dashboard.session import Session
from dashboard.widgets.text import banner, section
from trainmaster.errors import TrainmasterError
from trainmaster.orders import NUMERIC_FAULTS, Fault

FAULTS: tuple[str, ...] = get_args(Fault)


def show(session: Session) -> None:
    """Show what can be injected into a run; nothing where drills are not allowed, or nobody may."""
    t = session.t
    try:
        allowed = bool(session.reader.get("/v1/about").get("drills_allowed"))
        runs = [each for each in session.reader.runs() if each.get("state") == "running"]
    except TrainmasterError:
        return
    section(t("drills.title"))
    if not allowed:
        st.caption(t("drills.off"))
        return
    if session.role == "viewer" or not runs:
        st.caption(t("steer.why.viewer") if runs else t("drills.no_run"))
        return
    st.caption(t("drills.lead"))
    with st.form("drill"):
        left, middle, right = st.columns(3)
        names = {str(each["id"]): str(each.get("name") or each["id"]) for each in runs}
        run = left.selectbox(
            t("column.run"),
            list(names),
            format_func=lambda each: f"{names[each]} ({each})",
            key="drill-run",
        )
        fault = middle.selectbox(
            t("drills.fault"),
            FAULTS,
            format_func=lambda each: t(f"drills.fault.{each}"),
            key="drill-fault",
        )
        rank = right.number_input(t("column.rank"), min_value=0, value=0, step=1, key="drill-rank")
        length = left.number_input(
            t("drills.length"), min_value=1, value=5, step=1, key="drill-length"
        )
        why = middle.text_input(t("dialog.why"), key="drill-why") or ""
        pressed = st.form_submit_button(t("drills.do"))
    if pressed:
        args: Json = {"fault": fault, "rank": int(rank)}
        if fault in NUMERIC_FAULTS:
            args["steps"] = int(length)
        else:
            args["duration_s"] = float(length)
        seen = next(each for each in runs if str(each["id"]) == run)
        _send(session, seen, args, why)


def _send(session: Session, seen: Json, args: Json, why: str) -> None:
    run = str(seen["id"])
    body = {
        "kind": "drill",
        "args": args,
        "why": why,
        "expected_version": seen.get("version"),
        "idempotency_key": uuid4().hex,
    }
    try:
        session.api.post(f"/v1/runs/{quote(run, safe='')}/requests", body)
    except TrainmasterError as error:
        session.refusal(error)
        return
    banner("good", session.t("drills.sent"), link=(session.link("run", run=run), run))
