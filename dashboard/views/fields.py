"""Values of a document as widgets: each returns the document with what was chosen in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st
import yaml

from dashboard.forms import Field, at, changed
from dashboard.session import Session
from trainmaster.errors import SpecError

Document = dict[str, Any]
ACROSS = 3


def grid(
    session: Session, document: Document, fields: Sequence[tuple[str, Field]], *, key: str
) -> Document:
    """Show fields side by side, each with the path at which it stands."""
    columns = st.columns(min(ACROSS, len(fields))) if fields else []
    for place, (path, field) in enumerate(fields):
        with columns[place % len(columns)]:
            document = put(
                document, path, field, ask(session, field, at(document, path), key, path)
            )
    return document


def put(document: Document, path: str, field: Field, value: Any) -> Document:
    """Return the document with `value` at `path`; unchanged where it says so already, or says
    nothing and means it.
    """
    stands = at(document, path)
    if value == stands and type(value) is type(stands):
        return document
    if stands is None and value == field.default:
        return document
    try:
        return changed(document, path, value)
    except SpecError:
        return document


def ask(session: Session, field: Field, value: Any, key: str, path: str) -> Any:
    """Show one field, and return what stands in it; None for nothing."""
    label = session.t.word("field", field.name)
    shown = field.default if value is None else value
    name = f"{key}:{path}"
    if field.kind == "flag":
        return st.checkbox(label, value=bool(shown), key=name)
    if field.kind == "choice":
        return choose(session, label, field.choices, shown, name)
    if field.kind in {"integer", "number"}:
        return _number(label, field, shown, name)
    typed = st.text_input(label, value=_as_typed(shown), key=name) or ""
    return _as_meant(typed) if typed else None


def choose(session: Session, label: str, choices: Sequence[Any], shown: Any, key: str) -> Any:
    """Show a choice in the reader's words; what stands there and is none of them stays."""
    known = list(choices)
    if shown not in known:
        known.insert(0, shown)
    return st.selectbox(
        label,
        known,
        index=known.index(shown),
        format_func=lambda each: session.t.word("choice", str(each)) if each is not None else "–",
        key=key,
    )


def _number(label: str, field: Field, shown: Any, key: str) -> Any:
    """Ask for a number as text: any magnitude can be typed, and none is rounded."""
    typed = st.text_input(label, value=_as_typed(shown), key=key) or ""
    if not typed.strip():
        return None
    meant = _as_meant(typed)
    if field.kind == "number" and type(meant) is int:
        return float(meant)
    return meant


def _as_typed(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else yaml.safe_dump(value).removesuffix("...\n").strip()


def _as_meant(typed: str) -> Any:
    """Return a number for what is one, else the text: what a field refuses is told with the rest
    of the document.
    """
    for read in (int, float):
        try:
            return read(typed)
        except ValueError:
            continue
    return typed
