"""The grid of live charts: one component for a page, which keeps its zoom while it updates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from dashboard.charts.panels import Panel
from dashboard.i18n import Translator
from dashboard.login import PLOTLY_PATH

_TOOLS = {
    "Zoom": "charts.zoom",
    "Pan": "charts.pan",
    "Autoscale": "charts.whole",
    "Download plot as a PNG": "charts.save",
    "Download plot as a png": "charts.save",
    "Download plot": "charts.save",
    "Double-click to zoom back out": "charts.zoom_back",
}


def charts(panels: Sequence[Panel], *, key: str, revision: str, t: Translator) -> None:
    """Show `panels`; a new `revision` (other runs, another axis) forgets the zoom."""
    _component()(key=key, data={"panels": list(panels), "revision": revision, **_told(t)})


def live_charts(
    address: str,
    *,
    key: str,
    revision: str,
    steps: str | None,
    every_s: float | None,
    t: Translator,
) -> None:
    """Show the panels that the browser finds at `address` of this dashboard, where it looks again
    every `every_s` seconds (None: never) and with each zoom, which is told in the page's address.

    Args:
        steps: the window to begin with, as an address names it.
    """
    live = {"address": address, "steps": steps, "every_s": every_s}
    _component()(key=key, data={"live": live, "revision": revision, **_told(t)})


def _told(t: Translator) -> dict[str, Any]:
    return {
        "source": PLOTLY_PATH,
        "words": {english: t(name) for english, name in _TOOLS.items()},
        "unavailable": t("charts.unavailable"),
    }


def load_ahead(*, key: str) -> None:
    """Let the browser load what charts need before one is shown."""
    _ahead()(key=key, data={"source": PLOTLY_PATH})


@cache
def _ahead() -> ComponentRenderer:
    return st.components.v2.component(
        "trainmaster_ahead", html="<i hidden></i>", js=_script("ahead.js"), isolate_styles=False
    )


def _script(name: str) -> str:
    folder = files("dashboard.widgets")
    return "\n".join((folder / each).read_text(encoding="utf-8") for each in ("plotly.js", name))


@cache
def _component() -> ComponentRenderer:
    folder = files("dashboard.widgets")
    return st.components.v2.component(
        "trainmaster_charts",
        html='<div class="tm-grid"></div>',
        css=(folder / "charts.css").read_text(encoding="utf-8"),
        js=_script("charts.js"),
        isolate_styles=False,
    )
