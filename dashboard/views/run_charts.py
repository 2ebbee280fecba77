"""The live charts of a run: what the reader chooses of them, and where the browser asks for what
they show (`dashboard.live`).
"""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import uuid4

import streamlit as st

from dashboard.charts.axis import KINDS
from dashboard.exported import run_csv
from dashboard.places import PLACES
from dashboard.session import Session
from dashboard.views.run_drawn import SMOOTHING
from dashboard.widgets.addressed import segments
from dashboard.widgets.charts import live_charts

LOOK_PATH = "/live/run"
STEPS_IN_ADDRESS = "steps"


def show(session: Session, run_id: str) -> None:
    """Show the charts of a run."""
    _choices(session)
    live_charts(
        address(session, run_id),
        key=f"charts-{run_id}",
        revision=f"{run_id}/{_kind()}",
        steps=st.query_params.get(STEPS_IN_ADDRESS),
        every_s=session.refresh_s,
        t=session.t,
    )


def address(session: Session, run_id: str) -> str:
    """Return where the browser looks at a run, whose id stands at the end."""
    asked = {
        "axis": _kind(),
        "smoothing": str(st.session_state.get("smoothing") or "off"),
        "log": "1" if st.session_state.get("log") else "0",
        "lang": session.t.language,
        "zone": str(session.formats.zone),
        "page": _page(),
        "run": run_id,
    }
    return f"{LOOK_PATH}?{urlencode(asked)}"


def _kind() -> str:
    return str(st.session_state.get("axis") or KINDS[0])


def offer(session: Session, run_id: str) -> None:
    """Offer what is drawn as a table, and say how all points are had.

    Stands outside of what is shown again and again: each showing of a button to save revokes what
    the one before would have saved, also under the press.
    """
    page, who = _page(), session.who
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            session.t("compare.export.drawn"),
            data=lambda: run_csv(PLACES.of(who, run_id).drawn.get(page, {})),
            file_name=f"{run_id}.csv",
            mime="text/csv",
            on_click="ignore",
            key="run-export",
        )
        st.caption(session.t("charts.export.all"))
    st.code(f"trainmaster export {run_id} --format csv --out {run_id}.csv", language="bash")


def _page() -> str:
    """Return by which name this page's drawings are remembered."""
    name: str = st.session_state.setdefault("page", uuid4().hex)
    return name


def _choices(session: Session) -> None:
    """Let the reader choose how curves are drawn."""
    t = session.t
    with st.container(horizontal=True, vertical_alignment="bottom"):
        segments(t("charts.axis"), KINDS, name="axis", words=lambda name: t(f"charts.axis.{name}"))
        st.segmented_control(
            t("charts.smoothing"),
            list(SMOOTHING),
            default="off",
            required=True,
            format_func=lambda name: t(f"charts.smoothing.{name}"),
            key="smoothing",
        )
        st.toggle(t("charts.log"), key="log")
