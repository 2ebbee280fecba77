"""Parts of a page that follow what the browser finds when it looks by itself (`dashboard.live`)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer


def live_html(html: str, *, part: str, key: str) -> None:
    """Show `html`, escaped by who made it, until a look tells another of this part."""
    _component()(key=key, data={"html": html, "part": part})


def drawn_anew(mark: str, *, part: str, key: str) -> None:
    """Let the fragment that this stands in be drawn anew when a look tells another mark of it."""
    data: dict[str, Any] = {"mark": mark, "watched": part}
    _component()(key=key, data=data, on_moved_change=lambda: None)


@cache
def _component() -> ComponentRenderer:
    script = files("dashboard.widgets") / "live.js"
    return st.components.v2.component(
        "trainmaster_live",
        html='<div class="tm-live"></div>',
        js=script.read_text(encoding="utf-8"),
        isolate_styles=False,
    )
