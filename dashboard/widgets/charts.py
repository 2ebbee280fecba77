"""The grid of live charts: one component for a page, which keeps its zoom while it updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def charts(
    panels: Sequence[Panel],
    *,
    key: str,
    revision: str,
    t: Translator,
    window: tuple[float, float] | None = None,
) -> None:
    """Show `panels`; a new `revision` (another run, another axis) forgets the zoom and takes up
    `window`, from where to where the shared axis is to reach.
    """
    _component()(
        key=key,
        data={
            "panels": list(panels),
            "revision": revision,
            "window": None if window is None else list(window),
            "source": PLOTLY_PATH,
            "words": {english: t(name) for english, name in _TOOLS.items()},
            "unavailable": t("charts.unavailable"),
        },
        default={"window": None},
        on_window_change=lambda: None,
    )


def told_window(key: str, revision: str) -> tuple[Any, Any] | tuple[()] | None:
    """Return what the charts `key` were zoomed to since `revision` was shown: (low, high) as Plotly
    tells them, () after the zoom was given up, None where nobody has touched it.
    """
    told = (st.session_state.get(key) or {}).get("window")
    if not isinstance(told, Mapping) or told.get("revision") != revision:
        return None
    reach = told.get("range")
    return (reach[0], reach[1]) if isinstance(reach, Sequence) and len(reach) == 2 else ()


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
