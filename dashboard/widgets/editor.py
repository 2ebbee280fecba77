"""A text with line numbers that is told to the page while it is typed, and outlives a reload."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer


def typed(key: str, text: str) -> str:
    """Return what was typed into the editor `key` since it was given `text`, else that text."""
    state: Any = st.session_state.get(key) or {}
    return _of(state.get("typed"), text)


def editor(
    label: str,
    text: str,
    *,
    key: str,
    rows: int,
    marks: Mapping[int, str] | None = None,
    locked: bool = False,
) -> str:
    """Show an editor that begins with `text`, and return what stands in it.

    Another `text` than before replaces what was typed.

    Args:
        marks: what is wrong, by line from 1.
        locked: it may only be read.
    """
    revision = _revision(text)
    now = typed(key, text)
    result = _component()(
        key=key,
        data={
            "label": label,
            "text": text,
            "typed": now,
            "revision": revision,
            "place": key,
            "rows": rows,
            "marks": {str(line): told for line, told in (marks or {}).items()},
            "locked": locked,
        },
        on_typed_change=lambda: None,
    )
    return _of(result.get("typed"), text)


def _of(state: Any, text: str) -> str:
    if isinstance(state, Mapping) and state.get("revision") == _revision(text):
        return str(state.get("text"))
    return text


def _revision(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


@cache
def _component() -> ComponentRenderer:
    folder = files("dashboard.widgets")
    return st.components.v2.component(
        "trainmaster_editor",
        html='<div class="tm-editor-root"></div>',
        css=(folder / "editor.css").read_text(encoding="utf-8"),
        js=(folder / "editor.js").read_text(encoding="utf-8"),
        isolate_styles=False,
    )
