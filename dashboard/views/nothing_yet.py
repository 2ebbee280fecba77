"""What a page says that needs runs while there are none: how to come by the first."""

from __future__ import annotations

import streamlit as st

from dashboard.session import Session
from dashboard.views import go
from dashboard.widgets.text import section

COMMANDS = "trainmaster submit examples/stdlib_gpt.yaml\ntrainmaster runs"


def show(session: Session) -> None:
    """Show two commands, and the way to the page that submits."""
    t = session.t
    section(t("fleet.empty"))
    st.text(t("fleet.empty.how"))
    st.code(COMMANDS, language="bash")
    if st.button(t("fleet.empty.submit"), type="primary"):
        go.to(session, "submit")
