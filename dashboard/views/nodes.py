"""The machines: who is there, what runs where, how busy devices are, which one is quiet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import numpy as np
import streamlit as st

from dashboard import states
from dashboard.charts.series import Series
from dashboard.data import Json, several_body
from dashboard.formats import NOTHING, instant, number, size
from dashboard.session import Session
from dashboard.views import drills, link_panels
from dashboard.widgets.charts import charts
from dashboard.widgets.table import Column, Row, action, actions, cell, table
from dashboard.widgets.text import banner, facts, section, title
from trainmaster.wire import MOST_SKEW_S

MOST_RUNS, MOST_RANKS, NEWEST_STEPS = 8, 64, 8
TOLD_FOR_S = 15.0
COMMAND = "trainmaster agent --name NAME --slots 4"


def show(session: Session) -> None:
    """Show all nodes."""
    title(session.t("nodes.title"), small=session.t("nodes.lead"))
    session.live(lambda: _nodes(session), key="nodes", every_s=session.refresh_s)
    drills.show(session)


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
            Column("busy", t("column.busy"), "right"),
            Column("labels", t("column.labels")),
            Column("seen", t("column.seen"), "right"),
            Column("do", t("column.do")),
        ]
        session.tell_refused("nodes")
        _tell_asked(session)
        busy = busy_by_node(session)
        _by_kind(session, nodes, busy)
        pressed = table(
            columns,
            [_row(session, node, busy) for node in nodes],
            key="nodes-table",
            caption=t("nodes.title"),
            empty="",
        )
        links = link_panels.of_all(session, nodes)
        if links:
            charts(links, key="links", revision="links", t=t)
    if pressed is not None:
        path = f"/v1/nodes/{quote(pressed.id, safe='')}/{pressed.verb}"
        if session.act("nodes", lambda: session.api.post(path, {})) and pressed.verb == "calibrate":
            session.memory["calibrating"] = (pressed.id, session.now())
        st.rerun(scope="fragment")


def _tell_asked(session: Session) -> None:
    """Say for a while that a node was asked to measure itself."""
    asked = session.memory.get("calibrating")
    if asked is not None and (session.now() - asked[1]).total_seconds() < TOLD_FOR_S:
        banner("good", session.t("nodes.calibrating", node=asked[0]))


def busy_by_node(session: Session) -> dict[str, list[float]]:
    """Return the newest utilisation of each rank that runs, by its node."""
    found: dict[str, list[float]] = {}
    running = [each for each in session.reader.runs() if each.get("state") == "running"]
    for listed in running[:MOST_RUNS]:
        run = session.reader.run(str(listed["id"]))
        ranks = run.get("ranks") or []
        after_step = max(0, int(run.get("step") or 0) - NEWEST_STEPS)
        wanted = [("utilization_ratio", int(rank["rank"])) for rank in ranks[:MOST_RANKS]]
        told = session.reader.several(str(run["id"]), several_body(wanted, after_step=after_step))
        for rank, document in zip(ranks, told, strict=False):
            newest = Series.read(document).newest()
            if np.isfinite(newest):
                found.setdefault(str(rank["node"]), []).append(newest)
    return found


def _by_kind(session: Session, nodes: Sequence[Json], busy: Mapping[str, Sequence[float]]) -> None:
    """Show how busy the devices of each kind are, over all nodes that train."""
    kinds: dict[str, list[float]] = {}
    for node in nodes:
        kind = next((str(each.get("kind")) for each in node.get("devices") or []), None)
        if kind is not None and busy.get(str(node["id"])):
            kinds.setdefault(kind, []).extend(busy[str(node["id"])])
    if kinds:
        facts(
            [
                (session.t("nodes.busy", kind=kind), f"{sum(values) / len(values):.0%}")
                for kind, values in sorted(kinds.items())
            ]
        )


def _odd(session: Session, node: Json) -> Iterator[str]:
    """Yield that a node gets no ranks, and why, and by how much its clock is off."""
    if node.get("cordoned"):
        because = str(node.get("cordoned_because") or "")
        yield ": ".join(filter(None, (session.t("nodes.cordoned"), because)))
    skew_s = float(node.get("clock_skew_s") or 0.0)
    if abs(skew_s) > MOST_SKEW_S:
        yield session.t("nodes.clock", seconds=f"{skew_s:.1f}")


def _row(session: Session, node: Json, busy: Mapping[str, Sequence[float]]) -> Row:
    t = session.t
    shown = states.look(states.NODE, str(node.get("state")))
    labels = node.get("labels") or {}
    profile = node.get("profile") or {}
    return Row(
        str(node["id"]),
        {
            "node": cell(str(node.get("name") or node["id"])),
            "busy": _busy(busy.get(str(node["id"]), ())),
            "state": cell(
                t.word("node.state", str(node.get("state"))),
                icon=shown.icon,
                tone=shown.tone,
                sub="\n".join(_odd(session, node)),
            ),
            "slots": str(node.get("slots")),
            "devices": "\n".join(_device(device) for device in node.get("devices") or [])
            or NOTHING,
            "labels": cell(
                ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or NOTHING,
                sub="\n".join(filter(None, [_stated(profile), calibrated(session, profile)])),
            ),
            "taken": _taken(node),
            "do": actions(
                action(
                    "uncordon" if node.get("cordoned") else "cordon",
                    t("nodes.uncordon" if node.get("cordoned") else "nodes.cordon"),
                    disabled=session.role == "viewer",
                    title=t("nodes.cordon.help"),
                ),
                action(
                    "calibrate",
                    t("nodes.calibrate"),
                    disabled=session.role == "viewer" or node.get("state") == "lost",
                    title=t("nodes.calibrate.help"),
                ),
            ),
            "seen": session.formats.ago(instant(node.get("last_seen_at")), session.now()),
        },
    )


def calibrated(session: Session, profile: Json) -> str:
    """Return what was measured of the node, in short; nothing where nothing was."""
    found = profile.get("calibration") or {}
    told = [
        f"{dtype}: {number(figure.get('value', 0) / 1e9, 3)} GFLOP/s"
        for dtype, figure in sorted((found.get("flops") or {}).items())
    ]
    memory = found.get("memory_bytes_per_s")
    if memory:
        told.append(session.t("nodes.memory_speed", speed=size(memory.get("value"))))
    return "\n".join(told)


def _stated(profile: Json) -> str:
    plain = {key: value for key, value in sorted(profile.items()) if not isinstance(value, dict)}
    return ", ".join(f"{key}: {value}" for key, value in plain.items())


def _busy(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0%}" if values else NOTHING


def _taken(node: Json) -> str:
    slots: dict[str, int] = {}
    for each in node.get("taken") or []:
        slots[str(each["run"])] = slots.get(str(each["run"]), 0) + 1
    return "\n".join(f"{run} × {count}" for run, count in slots.items()) or NOTHING


def _device(device: Json) -> str:
    return f"{device.get('name') or device.get('kind')} · {size(device.get('memory_bytes'))}"
