"""Documents that a person writes, as text or in a form, read while they are typed: what is wrong is
said beside its line at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import streamlit as st

from dashboard.forms import as_text
from dashboard.session import Session
from dashboard.widgets.editor import editor, typed
from dashboard.widgets.text import banner, problems
from trainmaster.document import read
from trainmaster.errors import Problem, SpecError

WAYS = ("form", "text")
Meaning = TypeVar("Meaning")
Form = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Written(Generic[Meaning]):
    """What was written, and what it means; None while something is wrong with it."""

    text: str
    meaning: Meaning | None


@dataclass(frozen=True, slots=True)
class Sheet(Generic[Meaning]):
    """What is written, and how.

    Attributes:
        key: names it among all that can be written here.
        label: what it is.
        begins: the text before anything is typed; another one begins anew.
        understand: reads the text.
        heading: the key of what is said above what is wrong.
        form: shows a document as fields and returns it as they have it; None for text alone.
    """

    key: str
    label: str
    begins: str
    understand: Callable[[str], Meaning]
    heading: str
    rows: int = 20
    form: Form | None = None


def write(session: Session, sheet: Sheet[Meaning]) -> Written[Meaning]:
    """Show what is being written, and return how it stands."""
    way = "text"
    if sheet.form is not None:
        way = str(
            st.segmented_control(
                session.t("written.way"),
                WAYS,
                default="text",
                required=True,
                format_func=lambda name: session.t(f"written.{name}"),
                key=f"{sheet.key}:way",
                label_visibility="collapsed",
            )
        )
    drafts = session.memory.setdefault("drafts", {})
    begun, text, given = drafts.get(sheet.key, ("", "", ""))
    if begun != sheet.begins:
        text = given = sheet.begins
    meaning: Meaning | None
    if way == "form" and sheet.form is not None:
        text = given = _filled_in(session, sheet.form, text)
        meaning, wrong = _understood(sheet.understand, text)
    else:
        now = typed(f"{sheet.key}:text", given)
        meaning, wrong = _understood(sheet.understand, now)
        text = editor(
            sheet.label,
            given,
            key=f"{sheet.key}:text",
            rows=sheet.rows,
            marks={each.line: each.message for each in wrong if each.line},
            locked=session.role == "viewer",
        )
    drafts[sheet.key] = (sheet.begins, text, given)
    if wrong:
        tell_problems(session, SpecError(wrong), sheet.heading)
    return Written(text, meaning)


def forget(session: Session, key: str) -> None:
    """Begin anew with what is written under `key`."""
    session.memory.get("drafts", {}).pop(key, None)


def _filled_in(session: Session, form: Form, text: str) -> str:
    try:
        document = read(text).value
    except SpecError:
        document = None
    if not isinstance(document, dict):
        banner("warn", session.t("written.no_form"))
        return text
    filled = form(document)
    return text if filled == document else as_text(filled)


def _understood(
    understand: Callable[[str], Meaning], text: str
) -> tuple[Meaning | None, list[Problem]]:
    try:
        return understand(text), []
    except SpecError as error:
        return None, list(error.problems)


def tell_problems(session: Session, error: SpecError, heading: str) -> None:
    """Show all problems of a document, each with its line; `heading` is the key of what is said
    first.
    """
    t = session.t
    banner("bad", t(heading, count=len(error.problems)))
    problems(
        [
            f"{t('submit.line', line=each.line)}: {each}" if each.line else str(each)
            for each in error.problems
        ]
    )
