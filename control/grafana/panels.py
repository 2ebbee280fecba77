"""Pieces of a Grafana board as plain values: panels, queries, variables, and their places. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Json = dict[str, Any]

SCHEMA_VERSION: Final = 39
"""The newest form that Grafana 11 to 13 read alike."""
DATASOURCE_UID: Final = "trainmaster-prometheus"
DATASOURCE: Final = {"type": "prometheus", "uid": DATASOURCE_UID}
BOARD_COLUMNS: Final = 24

Unit = Literal["none", "s", "ms", "bytes", "Bps", "percentunit", "ops", "short", "celsius", "watt"]


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression, and how its series are called (`{{label}}` is filled in)."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        description: why one looks at it, in a sentence.
        warn_above: where a second colour begins, and a line, for colour is never alone.
        is_log: whether its axis is logarithmic.
        width, height: in the columns and rows of a board.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: Unit = "none"
    kind: Literal["timeseries", "stat", "table", "state-timeline"] = "timeseries"
    least: float | None = None
    most: float | None = None
    warn_above: float | None = None
    is_log: bool = False
    width: int = 12
    height: int = 8


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board, filled from the values of a label."""

    name: str
    label: str
    query: str
    multi: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board: its panels row by row, as they come."""

    uid: str
    title: str
    description: str
    panels: Sequence[Panel]
    variables: Sequence[Variable] = ()
    annotation_tags: Sequence[str] = ()

    def to_json(self) -> Json:
        """Return the board as Grafana reads it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["trainmaster"],
            "timezone": "browser",
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": SCHEMA_VERSION,
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "10s",
            "templating": {"list": [_variable(each) for each in self.variables]},
            "annotations": {"list": [_annotations(self.annotation_tags)]},
            "links": [
                {
                    "title": "Trainmaster",
                    "type": "dashboards",
                    "tags": ["trainmaster"],
                    "asDropdown": True,
                    "includeVars": False,
                    "keepTime": True,
                    "targetBlank": False,
                    "icon": "external link",
                    "tooltip": "",
                    "url": "",
                }
            ],
            "panels": list(_placed(self.panels)),
        }


def _placed(panels: Iterable[Panel]) -> Iterator[Json]:
    """Yield the panels from left to right, a new row where one does not fit any more."""
    left = top = row_height = 0
    for number, panel in enumerate(panels, start=1):
        if left + panel.width > BOARD_COLUMNS:
            left, top, row_height = 0, top + row_height, 0
        place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
        left, row_height = left + panel.width, max(row_height, panel.height)
        yield {"id": number, "gridPos": place, **_panel(panel)}


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": dict(DATASOURCE),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": dict(DATASOURCE),
                "expr": query.expr,
                "legendFormat": query.legend,
                **({"instant": True, "format": "table"} if panel.kind == "table" else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _field(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    custom: Json = {}
    if panel.warn_above is not None:
        steps.append({"color": "orange", "value": panel.warn_above})
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if panel.kind == "timeseries":
        # A gap is a gap: no line leads over steps that nobody measured.
        custom |= {"spanNulls": False, "lineWidth": 1, "fillOpacity": 0}
        if panel.is_log:
            custom["scaleDistribution"] = {"type": "log", "log": 10}
    field: Json = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": custom,
    }
    if panel.least is not None:
        field["min"] = panel.least
    if panel.most is not None:
        field["max"] = panel.most
    return field


def _options(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "stat":
        return {
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "value_and_name",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {}


def _variable(variable: Variable) -> Json:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": dict(DATASOURCE),
        "query": variable.query,
        "refresh": 2,
        "sort": 2,
        "multi": variable.multi,
        "includeAll": variable.multi,
    }


def _annotations(tags: Sequence[str]) -> Json:
    return {
        "name": "What happened",
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "iconColor": "purple",
        "target": {"type": "tags", "tags": ["trainmaster", *tags], "matchAny": False, "limit": 200},
    }
