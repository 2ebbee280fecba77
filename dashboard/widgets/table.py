"""Tables whose clicks name the id of what was clicked, so that rows may come and go meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
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
    curve: Sequence[float] = (),
) -> dict[str, Any]:
    """Return a cell of more than a bare text. `href` opens within the session (verb "open");
    `curve` is drawn below it, small and without an axis.
    """
    told: dict[str, Any] = {
        "text": text,
        "sub": sub,
        "icon": icon,
        "tone": tone,
        "href": href,
        "title": title,
        "ratio": ratio,
        "code": code,
        "curve": list(curve) if len(curve) > 1 else None,
    }
    return {name: value for name, value in told.items() if value not in ("", None, False)} | {
        "text": text
    }


def action(
    verb: str,
    label: str,
    *,
    disabled: bool = False,
    title: str = "",
    kind: str = "",
    icon: str | None = None,
) -> dict[str, Any]:
    """Return a button of an action cell; a disabled one says why in `title`. Where room is scarce
    an `icon` stands on it, and the label beside it when it is pointed at.
    """
    return {
        "verb": verb,
        "label": label,
        "disabled": disabled,
        "title": title,
        "kind": kind,
        "icon": icon,
    }


def actions(*buttons: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell of buttons."""
    return {"actions": list(buttons)}


def table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    key: str,
    caption: str,
    empty: str,
    ahead: str | None = None,
) -> Click | None:
    """Show a table, and return what was pressed in it since the last time, if anything.

    Args:
        ahead: what the page behind a link asks first, but for the row's id at its end.
    """
    result = _component()(
        key=key,
        data={
            "caption": caption,
            "empty": empty,
            "ahead": ahead,
            "columns": [
                {"key": column.key, "label": column.label, "align": column.align}
                for column in columns
            ],
            "rows": [{"id": row.id, "cells": dict(row.cells), "faded": row.faded} for row in rows],
        },
        on_action_change=lambda: None,
    )
    heard: MutableMapping[str, str] = st.session_state.setdefault("heard", {})
    return new_click(result.get("action"), key, heard)


def pressed(key: str) -> Click | None:
    """Return what was pressed in the table `key`, before it is shown anew: for presses that lead to
    another page, which need not wait for that.
    """
    told = st.session_state.get(key) or {}
    heard: MutableMapping[str, str] = st.session_state.setdefault("heard", {})
    return new_click(told.get("action"), key, heard)


def new_click(pressed: Any, key: str, heard: MutableMapping[str, str]) -> Click | None:
    """Return what was pressed in the table `key`; None where nothing was, or it was `heard` before.

    The browser sends a press a moment after it, with all else that the page holds. A part of the
    page that looks again within that moment sends it, too.
    """
    if not isinstance(pressed, Mapping) or heard.get(key) == pressed["press"]:
        return None
    heard[key] = str(pressed["press"])
    return Click(str(pressed["id"]), str(pressed["verb"]))


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
