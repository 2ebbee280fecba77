"""A short tour for whoever is here for the first time."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import streamlit as st

from dashboard.session import Session
from dashboard.widgets.text import section

STOPS: Mapping[str, str] = {
    "submit": "submit",
    "run": "",
    "steer": "",
    "rules": "rules",
    "alerts": "alerts",
    "nodes": "nodes",
}
"""What is shown, and the page that it is on."""

COMMANDS = """trainmaster submit examples/one_process.yaml --wait
trainmaster top
trainmaster events RUN"""


def button(session: Session) -> None:
    """Offer the tour."""
    if st.button(session.t("tour.open"), key="tour", icon=":material/explore:"):
        st.dialog(session.t("tour.title"), width="medium")(_tour)(session)


def _tour(session: Session) -> None:
    t = session.t
    for place, (name, page) in enumerate(STOPS.items(), 1):
        section(f"{place}. {t(f'tour.{name}.title')}")
        st.text(t(f"tour.{name}"))
        if page:
            address, label = escape(session.link(page), quote=True), escape(t(f"nav.{page}"))
            st.html(f'<a href="{address}" target="_self">{label}</a>')
    section(t("tour.terminal"))
    st.code(COMMANDS, language="bash")
