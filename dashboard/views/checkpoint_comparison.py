"""Two checkpoints of a run beside each other: the norms of their weights and of the difference."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import streamlit as st

from dashboard.data import Json
from dashboard.formats import NOTHING, number
from dashboard.session import Session
from dashboard.widgets.addressed import selection
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import banner, section
from trainmaster.errors import NotFoundError

GONE = frozenset({"writing", "retired"})
MOST_TENSORS = 100
_PLACE = "compare"
"""Of the checkpoint that is compared, in the address."""


def begin(checkpoint: str) -> None:
    """Let a checkpoint be compared with others from now on."""
    st.query_params[_PLACE] = checkpoint


def waits(session: Session) -> bool:
    """Whether a node is still to tell what was asked here."""
    return bool(session.memory.get("comparing"))


def show(session: Session, checkpoints: Sequence[Json]) -> None:
    """Show the checkpoint that the address names beside another; nothing where it names none.

    Args:
        checkpoints: of the run, newest first.
    """
    t = session.t
    named = st.query_params.get(_PLACE)
    readable = [str(each["id"]) for each in checkpoints if each["state"] not in GONE]
    others = others_of(str(named), readable)
    if named not in readable or not others:
        return
    section(t("distance.title", checkpoint=str(named)))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        other = selection(t("distance.other"), others, name="with", width=260)
        pressed = st.button(
            t("distance.do"),
            key="distance-do",
            disabled=session.role == "viewer",
            help=t("distance.help"),
        )
        if st.button(t("distance.close"), key="distance-close"):
            for name in (_PLACE, "with"):
                st.query_params.pop(name, None)
            st.rerun(scope="fragment")
    path = f"/v1/checkpoints/{quote(str(named), safe='')}/compare/{quote(other, safe='')}"
    if pressed:
        session.act("distance", lambda: session.api.post(path, {}))
    session.tell_refused("distance")
    try:
        found = session.reader.get(path)
    except NotFoundError:
        found = None
    session.memory["comparing"] = found is not None and found.get("state") != "applied"
    if found is not None:
        _tell(session, found)


def others_of(checkpoint: str, readable: Sequence[str]) -> list[str]:
    """Return what a checkpoint can be compared with, first the next older, then newer ones.

    Args:
        readable: newest first.
    """
    if checkpoint not in readable:
        return []
    place = readable.index(checkpoint)
    return [*readable[place + 1 :], *reversed(readable[:place])]


def _tell(session: Session, found: Json) -> None:
    t = session.t
    if found.get("state") != "applied":
        banner("info", t("distance.waits"))
        return
    if not found.get("ok"):
        because = "; ".join(str(each.get("message")) for each in found.get("findings") or [])
        banner("bad", t("distance.failed", because=because))
        return
    whole = {**found["whole"], "tensors": sum(each["tensors"] for each in found["layers"])}
    rows = [_row(f"layer-{each['layer']}", _layer(session, each), each) for each in found["layers"]]
    table(
        [Column("name", t("distance.layer")), *_columns(session, tensors=True)],
        [_row("whole", t("distance.whole"), whole), *rows],
        key="distance-layers",
        caption=t("distance.by_layer"),
        empty=t("distance.nothing_common"),
    )
    for key, words in (
        ("not_finite", "distance.not_finite"),
        ("other_not_finite", "distance.other_not_finite"),
    ):
        sick = [_layer(session, each) for each in found["layers"] if each.get(key)]
        if sick:
            count = number(found["whole"][key])
            st.caption(t(words, count=count, layers=", ".join(sick)))
    if found.get("without_counterpart"):
        names = [*found["only_here"], *found["only_there"]]
        names += [each["name"] for each in found["unlike"]]
        count = number(found["without_counterpart"])
        st.caption(t("distance.without", count=count, name=names[0]))
    if st.toggle(t("distance.by_tensor"), key="distance-tensors"):
        table(
            [Column("name", t("distance.tensor")), *_columns(session, tensors=False)],
            [_row(each["name"], each["name"], each) for each in found["tensors"][:MOST_TENSORS]],
            key="distance-each",
            caption=t("distance.by_tensor"),
            empty=t("distance.nothing_common"),
        )


def _layer(session: Session, distance: Json) -> str:
    layer = distance["layer"]
    return session.t("distance.no_layer") if layer is None else number(layer)


def _columns(session: Session, *, tensors: bool) -> list[Column]:
    names = ["norm", "other_norm", "difference", "relative", "largest", "changed"]
    return [
        Column(name, session.t(f"distance.{name}"), "right")
        for name in (["tensors", *names] if tensors else names)
    ]


def _row(name: str, label: str, distance: Json) -> Row:
    relative, elements = distance["relative_difference"], distance["elements"]
    return Row(
        name,
        {
            "name": cell(label, code="." in label),
            "tensors": number(distance.get("tensors")),
            "norm": number(distance["norm"]),
            "other_norm": number(distance["other_norm"]),
            "difference": number(distance["difference_norm"]),
            "relative": NOTHING if relative is None else cell(f"{relative:.2%}", ratio=relative),
            "largest": number(distance["largest_difference"]),
            "changed": f"{distance['changed'] / elements:.1%}" if elements else NOTHING,
        },
    )
