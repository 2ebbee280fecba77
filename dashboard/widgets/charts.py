"""The grid of live charts: one component for a page, which keeps its zoom while it updates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

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
    """Show `panels`; a new `revision` (another run) forgets the zoom."""
    _component()(
        key=key,
        data={
            "panels": list(panels),
            "revision": revision,
            "source": PLOTLY_PATH,
            "words": {english: t(name) for english, name in _TOOLS.items()},
            "unavailable": t("charts.unavailable"),
        },
    )


@cache
def _component() -> ComponentRenderer:
    folder = files("dashboard.widgets")
    return st.components.v2.component(
        "trainmaster_charts",
        html='<div class="tm-grid"></div>',
        css=(folder / "charts.css").read_text(encoding="utf-8"),
        js=(folder / "charts.js").read_text(encoding="utf-8"),
        isolate_styles=False,
    )
