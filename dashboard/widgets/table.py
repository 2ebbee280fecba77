"""Tables whose clicks name the id of what was clicked, so that rows may come and go meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

Tone = Literal["good", "warn", "bad", "quiet", ""]
Cell = str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `key` names the cells that stand in it."""

    key: str
    label: str
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Row:
    """A row: an id that outlives reordering, and its cells by column."""

    id: str
    cells: Mapping[str, Cell]
    faded: bool = False


@dataclass(frozen=True, slots=True)
class Click:
    """What was pressed: `verb` of the row `id`."""

    id: str
    verb: str


def cell(
    text: str,
    *,
    sub: str = "",
    icon: str = "",
    tone: Tone = "",
    href: str = "",
    title: str = "",
    ratio: float | None = None,
    code: bool = False,
) -> dict[str, Any]:
    """Return a cell of more than a bare text. `href` opens within the session (verb "open")."""
    told: dict[str, Any] = {
        "text": text,
        "sub": sub,
        "icon": icon,
        "tone": tone,
        "href": href,
        "title": title,
        "ratio": ratio,
        "code": code,
    }
    return {name: value for name, value in told.items() if value not in ("", None, False)} | {
        "text": text
    }


def action(
    verb: str, label: str, *, disabled: bool = False, title: str = "", kind: str = ""
) -> dict[str, Any]:
    """Return a button of an action cell; a disabled one says why in `title`."""
    return {"verb": verb, "label": label, "disabled": disabled, "title": title, "kind": kind}


def actions(*buttons: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell of buttons."""
    return {"actions": list(buttons)}


def table(
    columns: Sequence[Column], rows: Sequence[Row], *, key: str, caption: str, empty: str
) -> Click | None:
    """Show a table, and return what was pressed in it since the last time, if anything."""
    result = _component()(
        key=key,
        data={
            "caption": caption,
            "empty": empty,
            "columns": [
                {"key": column.key, "label": column.label, "align": column.align}
                for column in columns
            ],
            "rows": [{"id": row.id, "cells": dict(row.cells), "faded": row.faded} for row in rows],
        },
        on_action_change=lambda: None,
    )
    pressed = result.get("action")
    if not isinstance(pressed, Mapping):
        return None
    return Click(str(pressed.get("id")), str(pressed.get("verb")))


@cache
def _component() -> ComponentRenderer:
    folder = files("dashboard.widgets")
    return st.components.v2.component(
        "trainmaster_table",
        html='<div class="tm-table-root"></div>',
        css=(folder / "table.css").read_text(encoding="utf-8"),
        js=(folder / "table.js").read_text(encoding="utf-8"),
        isolate_styles=False,
    )
