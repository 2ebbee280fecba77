"""Dialogs of the run page: what cannot be taken back asks once and tells its consequence.

They are opened from the page itself: one opened within a fragment that reruns dies with it.
"""

from __future__ import annotations

from shlex import quote as quoted
from urllib.parse import quote

import streamlit as st

from dashboard.data import Json
from dashboard.session import Session
from dashboard.views import go, incident_dialogs, run_restore, run_stop
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
    elif wanted["kind"] == "export":
        st.dialog(t("export.title"), width="medium")(_export)(session, run_id, wanted["detail"])
    else:
        st.dialog(t("restore.title"), width="medium")(_restore)(session, run_id, wanted["detail"])


def _stop(session: Session, run_id: str) -> None:
    run = _run(session, run_id)
    if run is not None:
        run_stop.ask(session, run)


def _restore(session: Session, run_id: str, checkpoint: str) -> None:
    run = _run(session, run_id)
    if run is not None:
        run_restore.ask(session, run, checkpoint)


def _export(session: Session, run_id: str, checkpoint: str) -> None:
    """Show the commands that write weights where they are run: no bytes pass through here."""
    t = session.t
    st.text(t("export.what", checkpoint=checkpoint))
    for found in session.reader.checkpoints(run_id):
        if found["id"] == checkpoint:
            by_id, by_place = commands(session.api.url, found)
            st.code(by_id, "bash", wrap_lines=True)
            st.text(t("export.by_place"))
            st.code(by_place, "bash", wrap_lines=True)
    st.text(t("export.hf"))


def commands(url: str, checkpoint: Json) -> tuple[str, str]:
    """Return the commands that export a checkpoint's weights: by its id from the control plane at
    `url`, and by where it lies.
    """
    name, out = str(checkpoint["id"]), quoted(f"{checkpoint['id']}-weights")
    begin, end = "trainmaster export-weights", f"--out {out}"
    return (
        f"TRAINMASTER_URL={quoted(url)} {begin} {quoted(name)} {end}",
        f"{begin} {quoted(str(checkpoint.get('location') or name))} {end}",
    )


def _run(session: Session, run_id: str) -> Json | None:
    try:
        run: Json = session.api.get(f"/v1/runs/{quote(run_id, safe='')}")
    except TrainmasterError as error:
        session.refusal(error)
        return None
    return run
