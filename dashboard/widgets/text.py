"""Texts from outside, shown as they are: no markdown, no HTML of theirs is ever read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

import streamlit as st

BannerKind = Literal["bad", "warn", "info", "good"]
_ICONS = {"bad": "✖", "warn": "▲", "info": "i", "good": "✔"}


def title(text: str, *, small: str = "") -> None:
    """Show a page's heading, with a smaller line below."""
    st.html(title_html(text, small=small))


def title_html(text: str, *, small: str = "") -> str:
    """Return a page's heading, with a smaller line below."""
    below = f'<p class="tm-under">{escape(small)}</p>' if small else ""
    return f'<h1 class="tm-title">{escape(text)}</h1>{below}'


def section(text: str) -> None:
    """Show the heading of a section."""
    st.html(f'<h2 class="tm-section">{escape(text)}</h2>')


def banner(kind: BannerKind, text: str, *, link: tuple[str, str] | None = None) -> None:
    """Show a sentence that must be seen; `link` is (address within the dashboard, label)."""
    st.html(banner_html(kind, text, link=link))


def banner_html(kind: BannerKind, text: str, *, link: tuple[str, str] | None = None) -> str:
    """Return a sentence that must be seen."""
    role = "alert" if kind in {"bad", "warn"} else "status"
    more = ""
    if link is not None:
        more = f' <a href="{escape(link[0], quote=True)}" target="_self">{escape(link[1])}</a>'
    return (
        f'<div class="tm-banner tm-banner-{kind}" role="{role}">'
        f'<span aria-hidden="true">{_ICONS[kind]}</span> '
        f"<span>{escape(text)}{more}</span></div>"
    )


def problems(lines: Sequence[str]) -> None:
    """Show what is wrong with a document, one problem a line."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    st.html(f'<ul class="tm-problems">{items}</ul>')


def facts(pairs: list[tuple[str, str]]) -> None:
    """Show label and value pairs as a wrapping line of small cards."""
    st.html(facts_html(pairs))


def facts_html(pairs: list[tuple[str, str]]) -> str:
    """Return label and value pairs, each of them as a small card."""
    cards = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in pairs
    )
    return f'<dl class="tm-facts">{cards}</dl>'
