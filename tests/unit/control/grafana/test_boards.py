"""Boards: what Grafana accepts, of metrics that there are, and the same in the files."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from control.grafana.boards import BOARDS
from control.grafana.panels import BOARD_COLUMNS, DATASOURCE_UID, Board
from scripts.grafana_boards import FOLDER, text_of

ROOT = Path(__file__).parents[4]

# The part of Grafana's published model of a dashboard (schema version 39) that the boards use.
SOURCE = {
    "type": "object",
    "required": ["type", "uid"],
    "additionalProperties": False,
    "properties": {"type": {"type": "string"}, "uid": {"type": "string"}},
}
PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos", "targets", "fieldConfig", "options"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["timeseries", "stat", "table", "state-timeline"]},
        "title": {"type": "string", "minLength": 1},
        "description": {"type": "string", "minLength": 10},
        "datasource": SOURCE,
        "gridPos": {
            "type": "object",
            "required": ["x", "y", "w", "h"],
            "additionalProperties": False,
            "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 23},
                "y": {"type": "integer", "minimum": 0},
                "w": {"type": "integer", "minimum": 1, "maximum": 24},
                "h": {"type": "integer", "minimum": 1},
            },
        },
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["refId", "expr", "legendFormat", "datasource"],
                "additionalProperties": False,
                "properties": {
                    "refId": {"type": "string", "pattern": "^[A-Z]$"},
                    "datasource": SOURCE,
                    "expr": {"type": "string"},
                    "legendFormat": {"type": "string"},
                    "instant": {"type": "boolean"},
                    "format": {"enum": ["table"]},
                },
            },
        },
        "fieldConfig": {
            "type": "object",
            "required": ["defaults", "overrides"],
            "additionalProperties": False,
            "properties": {
                "overrides": {"type": "array"},
                "defaults": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "unit": {"type": "string"},
                        "min": {"type": "number"},
                        "max": {"type": "number"},
                        "color": {"type": "object"},
                        "custom": {"type": "object"},
                        "thresholds": {
                            "type": "object",
                            "required": ["mode", "steps"],
                            "properties": {"mode": {"enum": ["absolute", "percentage"]}},
                        },
                    },
                },
            },
        },
        "options": {"type": "object"},
    },
}
DASHBOARD = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "templating", "annotations", "panels", "time"],
    "additionalProperties": False,
    "properties": {
        "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{8,40}$"},
        "title": {"type": "string"},
        "description": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "timezone": {"enum": ["browser", "utc"]},
        "editable": {"type": "boolean"},
        "graphTooltip": {"enum": [0, 1, 2]},
        "schemaVersion": {"type": "integer"},
        "time": {
            "type": "object",
            "required": ["from", "to"],
            "additionalProperties": False,
            "properties": {"from": {"type": "string"}, "to": {"type": "string"}},
        },
        "refresh": {"type": "string", "pattern": "^[0-9]+[smh]$"},
        "templating": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "name"],
                        "properties": {
                            "type": {"enum": ["query"]},
                            "name": {"type": "string"},
                            "datasource": SOURCE,
                            "query": {"type": "string"},
                            "refresh": {"enum": [0, 1, 2]},
                            "sort": {"enum": list(range(9))},
                        },
                    },
                }
            },
        },
        "annotations": {
            "type": "object",
            "required": ["list"],
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "datasource", "enable", "iconColor"],
                        "properties": {
                            "target": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["limit", "matchAny", "tags", "type"],
                                "properties": {
                                    "limit": {"type": "integer"},
                                    "matchAny": {"type": "boolean"},
                                    "tags": {"type": "array", "items": {"type": "string"}},
                                    "type": {"type": "string"},
                                },
                            }
                        },
                    },
                }
            },
        },
        "links": {"type": "array"},
        "panels": {"type": "array", "minItems": 1, "items": PANEL},
    },
}

each_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def exprs(board: Board) -> list[str]:
    told = [query.expr for panel in board.panels for query in panel.queries]
    return told + [variable.query for variable in board.variables]


@each_board
def test_a_board_is_as_grafana_reads_it(board: Board):
    jsonschema.validate(board.to_json(), DASHBOARD)


@each_board
@pytest.mark.parametrize(
    "spoil",
    [
        lambda board: board.update(refresh=5),
        lambda board: board.update(unknown=True),
        lambda board: board["panels"][0].update(type="graph"),
        lambda board: board["time"].pop("to"),
        lambda board: board["panels"][0]["gridPos"].update(w=25),
    ],
)
def test_the_check_notices_what_grafana_would_not_read(board: Board, spoil: Any):
    told = board.to_json()
    spoil(told)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(told, DASHBOARD)


@each_board
def test_panels_lie_beside_each_other_and_within_the_board(board: Board):
    places = [panel["gridPos"] for panel in board.to_json()["panels"]]
    assert all(place["x"] + place["w"] <= BOARD_COLUMNS for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@each_board
def test_every_metric_that_a_board_asks_for_is_exported(board: Board):
    documented = set(
        re.findall(r"`(trainmaster_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text())
    )
    asked = {name for expr in exprs(board) for name in re.findall(r"trainmaster_[a-z_]+", expr)}
    histograms = {f"{name}_{end}" for name in documented for end in ("bucket", "sum", "count")}
    assert asked - documented - histograms == set()


@each_board
def test_the_file_that_grafana_provisions_is_the_same_board(board: Board):
    assert (FOLDER / f"{board.uid}.json").read_text() == text_of(board), "make docs"


def test_all_boards_read_the_data_source_that_is_provisioned():
    provisioned = (FOLDER.parent / "provisioning" / "datasources" / "trainmaster.yml").read_text()
    assert f"uid: {DATASOURCE_UID}" in provisioned
    named = set(
        re.findall(r'"uid": "([^"]*prometheus[^"]*)"', json.dumps([b.to_json() for b in BOARDS]))
    )
    assert named == {DATASOURCE_UID}
