"""Where a run is put: its tags, and the archive."""

from __future__ import annotations

from urllib.parse import quote

import streamlit as st

from dashboard import states
from dashboard.fleet import read_tags
from dashboard.session import Session
from dashboard.views import go
from trainmaster.errors import TrainmasterError

_WHERE = "shelf"


def open_asked(session: Session) -> None:
    """Open the dialog that was asked for, if any."""
    wanted = go.dialog_asked()
    if wanted is not None and wanted["kind"] == "shelf":
        st.dialog(session.t("shelf.title"))(_shelf)(session, wanted["detail"])


def _shelf(session: Session, run_id: str) -> None:
    t = session.t
    try:
        run = session.reader.run(run_id)
    except TrainmasterError as error:
        session.refusal(error)
        return
    st.text(f"{run.get('name') or run_id} ({run_id})")
    told = st.text_input(
        t("shelf.tags"),
        value=", ".join(run.get("tags") or ()),
        help=t("shelf.tags.help"),
        key=f"shelf-tags-{run_id}",
    )
    path = f"/v1/runs/{quote(run_id, safe='')}"
    archived = run.get("archived_at") is not None
    ended = run["state"] in states.TERMINAL
    with st.container(horizontal=True):
        saves = st.button(t("shelf.save"), type="primary", key="shelf-save")
        moves = st.button(
            t("shelf.unarchive" if archived else "shelf.archive"),
            disabled=not (archived or ended),
            help=t("shelf.archive.help" if archived or ended else "shelf.archive.why_not"),
            key="shelf-archive",
        )
    done = False
    if saves:
        tags = read_tags(told or "")
        done = session.act(_WHERE, lambda: session.api.put(f"{path}/tags", {"tags": tags}))
    elif moves:
        verb = "unarchive" if archived else "archive"
        done = session.act(_WHERE, lambda: session.api.post(f"{path}/{verb}", {}))
    if done:
        st.rerun()
    session.tell_refused(_WHERE)
