"""The machines: who is there, what runs where, which one is quiet."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import numpy as np
import streamlit as st

from dashboard import states
from dashboard.charts.heat import heat_panel
from dashboard.data import Json
from dashboard.formats import NOTHING, instant, number, size
from dashboard.links import links_of
from dashboard.session import Session
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, action, actions, cell, table
from dashboard.widgets.text import section, title

COMMAND = "trainmaster agent --name NAME --slots 4"


def show(session: Session) -> None:
    """Show all nodes."""
    title(session.t("nodes.title"), small=session.t("nodes.lead"))
    session.live(lambda: _nodes(session), key="nodes", every_s=session.refresh_s)


def _nodes(session: Session) -> None:
    t = session.t
    pressed = None
    with session.guarded():
        nodes = session.reader.nodes()
        if not nodes:
            section(t("nodes.empty"))
            st.text(t("nodes.empty.how"))
            st.code(COMMAND, language="bash")
            return
        columns = [
            Column("node", t("column.node")),
            Column("state", t("column.state")),
            Column("slots", t("column.slots"), "right"),
            Column("devices", t("column.devices")),
            Column("taken", t("column.taken")),
            Column("labels", t("column.labels")),
            Column("seen", t("column.seen"), "right"),
            Column("do", t("column.do")),
        ]
        session.tell_refused("nodes")
        pressed = table(
            columns,
            [_row(session, node) for node in nodes],
            key="nodes-table",
            caption=t("nodes.title"),
            empty="",
        )
        _links(session, nodes)
    if pressed is not None:
        path = f"/v1/nodes/{quote(pressed.id, safe='')}/{pressed.verb}"
        session.act("nodes", lambda: session.api.post(path, {}))
        st.rerun(scope="fragment")


def _links(session: Session, nodes: Sequence[Json]) -> None:
    """Show latency and bandwidth from each node (row) to each other (column), where known."""
    t = session.t
    found = links_of(nodes)
    if found is None:
        return
    panels = [
        heat_panel(
            name,
            t(f"nodes.{name}"),
            found.nodes,
            found.nodes,
            values,
            [["" if np.isnan(each) else number(float(each)) for each in line] for line in values],
            words={"median": t("charts.median"), "empty": t("charts.empty")},
        )
        for name, values in (("latency_ms", found.latency_ms), ("mbps", found.mbps))
    ]
    charts(panels, key="links", revision="links", t=t)


def _row(session: Session, node: Json) -> Row:
    t = session.t
    shown = states.look(states.NODE, str(node.get("state")))
    labels = node.get("labels") or {}
    profile = node.get("profile") or {}
    return Row(
        str(node["id"]),
        {
            "node": cell(str(node.get("name") or node["id"])),
            "state": cell(
                t.word("node.state", str(node.get("state"))),
                icon=shown.icon,
                tone=shown.tone,
                sub=t("nodes.cordoned") if node.get("cordoned") else "",
            ),
            "slots": str(node.get("slots")),
            "devices": "\n".join(_device(device) for device in node.get("devices") or [])
            or NOTHING,
            "labels": cell(
                ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or NOTHING,
                sub=", ".join(
                    f"{key}: {value}"
                    for key, value in sorted(profile.items())
                    if not isinstance(value, dict)
                ),
            ),
            "taken": _taken(node),
            "do": actions(
                action(
                    "uncordon" if node.get("cordoned") else "cordon",
                    t("nodes.uncordon" if node.get("cordoned") else "nodes.cordon"),
                    disabled=session.role == "viewer",
                    title=t("nodes.cordon.help"),
                )
            ),
            "seen": session.formats.ago(instant(node.get("last_seen_at")), session.now()),
        },
    )


def _taken(node: Json) -> str:
    slots: dict[str, int] = {}
    for each in node.get("taken") or []:
        slots[str(each["run"])] = slots.get(str(each["run"]), 0) + 1
    return "\n".join(f"{run} × {count}" for run, count in slots.items()) or NOTHING


def _device(device: Json) -> str:
    return f"{device.get('name') or device.get('kind')} · {size(device.get('memory_bytes'))}"
