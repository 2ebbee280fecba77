"""Puts the data source, the folder, the boards and the annotations into a Grafana. Doing it again
changes nothing.

Grafana itself remembers how far annotations have come: each carries the number of its event as a
tag, so nothing of it is kept here, and another control plane goes on where this one stopped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from control.grafana.boards import BOARDS
from control.grafana.panels import DATASOURCE_UID
from control.grafana.server import Grafana

FOLDER_UID: Final = "trainmaster"
NOTES_AT_ONCE: Final = 100
NOTED_KINDS: Final = (
    "alert_firing",
    "alert_resolved",
    "incident_opened",
    "incident_closed",
    "run_starting",
    "run_recovering",
    "run_succeeded",
    "run_failed",
    "run_stopped",
    "run_unreachable",
)
"""Kinds of events that become annotations; a rollback, a restore and a generation are told by
`run_starting`.
"""
_EVENT_TAG: Final = re.compile(r"event:(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Note:
    """An event as an annotation."""

    event: int
    run: str
    at: datetime
    kind: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the annotation as Grafana takes it. The text is plain: what looks like a tag or a
        template in it is shown as it is.
        """
        return {
            "time": round(self.at.timestamp() * 1000),
            "tags": ["trainmaster", "run", f"run:{self.run}", self.kind, f"event:{self.event}"],
            "text": self.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
        }


def publish(grafana: Grafana, prometheus_url: str) -> list[str]:
    """Bring data source, folder and boards to what this version has; return what was changed."""
    changed = []
    if _put_data_source(grafana, prometheus_url):
        changed.append("the data source")
    if grafana.get(f"/folders/{FOLDER_UID}") is None:
        grafana.post("/folders", {"uid": FOLDER_UID, "title": "Trainmaster"})
        changed.append("the folder")
    for board in BOARDS:
        wanted = board.to_json()
        found = grafana.get(f"/dashboards/uid/{board.uid}")
        if found is not None and _is_as(wanted, found.get("dashboard") or {}):
            continue
        grafana.post(
            "/dashboards/db",
            {
                "dashboard": {**wanted, "id": None},
                "folderUid": FOLDER_UID,
                "overwrite": True,
                "message": "Published by Trainmaster",
            },
        )
        changed.append(f"the board {board.title!r}")
    return changed


def _put_data_source(grafana: Grafana, prometheus_url: str) -> bool:
    wanted = {
        "uid": DATASOURCE_UID,
        "name": "Trainmaster's Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": prometheus_url,
        "jsonData": {"httpMethod": "POST", "timeInterval": "5s"},
    }
    found = grafana.get(f"/datasources/uid/{DATASOURCE_UID}")
    if found is None:
        grafana.post("/datasources", wanted)
    elif not _is_as(wanted, found):
        grafana.put(f"/datasources/uid/{DATASOURCE_UID}", wanted)
    else:
        return False
    return True


def _is_as(wanted: Any, found: Any) -> bool:
    """Return whether all that is wanted is found; Grafana adds keys of its own."""
    match wanted, found:
        case Mapping(), Mapping():
            return all(name in found and _is_as(each, found[name]) for name, each in wanted.items())
        case list(), list():
            return len(wanted) == len(found) and all(map(_is_as, wanted, found))
        case _:
            return bool(wanted == found)


def newest_noted(grafana: Grafana) -> int | None:
    """Return the number of the newest event that has an annotation; None if none has."""
    found = grafana.get(f"/annotations?tags={quote('trainmaster')}&type=annotation&limit=100") or []
    numbers = [
        int(match.group(1))
        for annotation in found
        for tag in annotation.get("tags") or ()
        if (match := _EVENT_TAG.fullmatch(str(tag)))
    ]
    return max(numbers, default=None)


def annotate(grafana: Grafana, note: Note) -> None:
    """Write one annotation."""
    grafana.post("/annotations", note.to_json())
