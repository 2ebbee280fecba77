"""What a rank of a run has printed: its last lines, and those among them that are sought."""

from __future__ import annotations

from urllib.parse import quote

import streamlit as st

from dashboard.data import Json
from dashboard.session import Session
from dashboard.sought import holds
from dashboard.widgets.addressed import selection
from dashboard.widgets.text import banner
from trainmaster.errors import NotFoundError

TAILS = (100, 1000, 10_000)
MOST_SHOWN = 2000


def show(session: Session, run: Json) -> None:
    """Show the log of one rank of the newest generation."""
    t = session.t
    run_id = str(run["id"])
    ranks = [str(rank["rank"]) for rank in run.get("ranks") or []]
    if not ranks:
        st.text(t("ranks.empty"))
        return
    with st.container(horizontal=True):
        rank = selection(t("column.rank"), ranks, name="rank", width=140)
        tail = st.selectbox(t("logs.tail"), TAILS, key="log-tail", width=140)
        sought = st.text_input(t("logs.sought"), key="log-sought") or ""
    try:
        path = f"/v1/runs/{quote(run_id, safe='')}/logs"
        log: Json = session.reader.get(path, rank=rank, tail=tail)
    except NotFoundError as error:
        banner("info", error.message)
        return
    lines = [line for line in log.get("lines") or [] if holds(line, sought)]
    if not lines:
        st.text(t("logs.none", rank=rank) if not log.get("lines") else t("logs.empty"))
        return
    st.code("\n".join(lines[-MOST_SHOWN:]), language=None, height=420)
