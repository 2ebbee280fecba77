"""Choices that the address of a page names: by what they are, not by what a language calls them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import streamlit as st


def segments(
    label: str,
    options: Sequence[str],
    *,
    name: str,
    words: Callable[[str], str],
    hidden_label: bool = False,
) -> str:
    """Let one of `options` be chosen side by side; return it. The first is the usual one, which the
    address `?name=...` leaves out.
    """
    _begin(name, options)
    chosen = st.segmented_control(
        label,
        options,
        required=True,
        format_func=words,
        key=name,
        label_visibility="collapsed" if hidden_label else "visible",
    )
    return _told(name, options, str(chosen))


def selection(
    label: str,
    options: Sequence[str],
    *,
    name: str,
    words: Callable[[str], str] = str,
    width: int = 190,
) -> str:
    """Let one of `options` be chosen from a list, in the way of `segments`."""
    _begin(name, options)
    chosen = st.selectbox(label, options, format_func=words, key=name, width=width)
    return _told(name, options, str(chosen))


def _begin(name: str, options: Sequence[str]) -> None:
    if st.session_state.get(name) not in options:
        st.session_state[name] = named(st.query_params.get(name), options)


def _told(name: str, options: Sequence[str], chosen: str) -> str:
    tell(st.query_params, name, options, chosen)
    return chosen


def named(asked: str | None, options: Sequence[str]) -> str:
    """Return what an address asks for where there is such an option, else the usual one."""
    return asked if asked is not None and asked in options else options[0]


def tell(address: MutableMapping[str, Any], name: str, options: Sequence[str], chosen: str) -> None:
    """Let the address name what was chosen; what is usual it leaves out."""
    if chosen == options[0]:
        address.pop(name, None)
    elif address.get(name) != chosen:
        address[name] = chosen
