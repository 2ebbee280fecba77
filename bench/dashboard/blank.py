"""A blank page of the same framework, that looks again as often: what nobody can go below."""

from __future__ import annotations

import streamlit as st


def tick() -> None:
    """Show one line."""
    st.text("blank")


if __name__ == "__main__":
    st.fragment(tick, run_every=2.0)()
