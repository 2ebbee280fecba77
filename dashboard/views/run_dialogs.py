"""Dialogs of the run page: what cannot be taken back asks once and tells its consequence.

They are opened from the page itself: one opened within a fragment that reruns dies with it.
"""

from __future__ import annotations

from urllib.parse import quote

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.formats import number
from dashboard.session import Session
from dashboard.steering import verb
from dashboard.views import go, incident_dialogs, run_steering
from dashboard.widgets.text import banner
from trainmaster.errors import TrainmasterError


def open_asked(session: Session, run_id: str) -> None:
    """Open the dialog that was asked for, if any."""
    wanted = go.dialog_asked()
    if wanted is None or wanted["about"] != run_id:
        return
    t = session.t
    if wanted["kind"] in incident_dialogs.KINDS:
        incident_dialogs.open_asked(session, wanted)
    elif wanted["kind"] == "stop":
        st.dialog(t("stop.title"))(_stop)(session, run_id)
    else:
        st.dialog(t("restore.title"), width="medium")(_restore)(session, run_id, wanted["detail"])


def _stop(session: Session, run_id: str) -> None:
    t = session.t
    run = _run(session, run_id)
    if run is None:
        return
    st.text(t("stop.what", name=run.get("name") or run_id))
    keep = st.checkbox(t("stop.checkpoint"), value=True, key="stop-checkpoint")
    if not keep:
        banner("warn", t("stop.lost", steps=_steps_since_checkpoint(session, run)))
    why = st.text_input(t("dialog.why"), key="stop-why")
    if st.button(t("stop.do"), type="primary", key="stop-do"):
        run_steering.send(session, run, "stop", {"checkpoint": keep}, why or "")
        st.rerun()


def _steps_since_checkpoint(session: Session, run: Json) -> int:
    saved = [
        int(checkpoint["step"])
        for checkpoint in session.reader.checkpoints(str(run["id"]))
        if checkpoint["state"] in {"committed", "trusted"} and not checkpoint.get("abandoned")
    ]
    return max(0, int(run.get("step") or 0) - max(saved, default=0))


def _restore(session: Session, run_id: str, checkpoint: str) -> None:
    t = session.t
    run = _run(session, run_id)
    if run is None:
        return
    st.text(t("restore.what", name=run.get("name") or run_id, checkpoint=checkpoint))
    left, right = st.columns(2)
    skip = left.number_input(
        t("restore.skip_steps"),
        min_value=0,
        max_value=1_000_000,
        value=0,
        step=1,
        key="restore-skip",
        help=t("restore.skip_steps.help"),
    )
    factor = right.number_input(
        t("restore.lr_factor"),
        min_value=0.01,
        max_value=10.0,
        value=1.0,
        step=0.1,
        key="restore-factor",
        help=t("restore.lr_factor.help"),
    )
    args: Json = {"checkpoint": checkpoint}
    if skip:
        args["skip_steps"] = int(skip)
    if factor != 1.0:
        args["lr_factor"] = float(factor)
    possible = _preview(session, run, args)
    why = st.text_input(t("dialog.why"), key="restore-why")
    told = verb("restore", str(run["state"]), session.role)
    if told.reason:
        banner("warn", t(told.reason, state=t.word("run.state", str(run["state"]))))
    if st.button(
        t("restore.do"), type="primary", key="restore-do", disabled=not (possible and told.enabled)
    ):
        run_steering.send(session, run, "restore", args, why or "")
        st.rerun()


def _preview(session: Session, run: Json, args: Json) -> bool:
    """Tell what would be lost and what would differ; return whether it can be done."""
    t = session.t
    path = f"/v1/runs/{quote(str(run['id']), safe='')}/restore-preview"
    try:
        preview: Json = session.api.post(path, args)
    except TrainmasterError as error:
        session.refusal(error)
        return False
    state = str(preview.get("checkpoint_state"))
    shown = states.look(states.CHECKPOINT, state)
    st.text(f"{t('restore.state')}: {shown.icon} {t.word('checkpoint.state', state)}")
    st.text(lost_steps(session, preview))
    st.text(t("restore.differs"))
    st.text("\n".join(f"• {line}" for line in preview.get("differs") or [t("restore.same")]))
    for warning in preview.get("warnings") or []:
        banner("warn", str(warning))
    if preview.get("refused"):
        banner("bad", str(preview["refused"]))
    return not preview.get("refused")


def lost_steps(session: Session, preview: Json) -> str:
    """Say which steps the preview says are lost."""
    count = int(preview.get("steps_lost") or 0)
    if not count:
        return session.t("restore.nothing_lost")
    last = int(preview["current_step"])
    return session.t(
        "restore.lost",
        first=number(last - count + 1),
        last=number(last),
        count=number(count),
        time=session.formats.duration(preview.get("seconds_lost")),
    )


def _run(session: Session, run_id: str) -> Json | None:
    try:
        run: Json = session.api.get(f"/v1/runs/{quote(run_id, safe='')}")
    except TrainmasterError as error:
        session.refusal(error)
        return None
    return run
