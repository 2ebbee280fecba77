"""Links between nodes as heat maps: latency and bandwidth from each node (row) to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dashboard.charts.heat import heat_panel
from dashboard.charts.panels import Panel
from dashboard.data import Json
from dashboard.formats import number
from dashboard.links import Links, links_of
from dashboard.session import Session


def of_all(session: Session, nodes: Sequence[Json]) -> list[Panel]:
    """Return what is known of the links between nodes; nothing where nothing is."""
    found = links_of(nodes)
    return [] if found is None else _panels(session, found)


def of_run(session: Session, run: Json, nodes: Sequence[Json]) -> list[Panel]:
    """Return what is known of the links between the nodes of a run."""
    used = nodes_of(run)
    return of_all(session, [node for node in nodes if str(node["id"]) in used])


def nodes_of(run: Json) -> frozenset[str]:
    """Return the nodes that ranks of a run are on."""
    return frozenset(str(rank["node"]) for rank in run.get("ranks") or [] if rank.get("node"))


def _panels(session: Session, found: Links) -> list[Panel]:
    t = session.t
    return [
        heat_panel(
            f"links-{name}",
            t(f"links.{name}"),
            found.nodes,
            found.nodes,
            values,
            [["" if np.isnan(each) else number(float(each)) for each in line] for line in values],
            words={"median": t("charts.median"), "empty": t("charts.empty")},
            among="all",
        )
        for name, values in (("latency_ms", found.latency_ms), ("mbps", found.mbps))
    ]
