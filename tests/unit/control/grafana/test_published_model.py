"""Boards against Grafana's own model: the SDK that Grafana generates from its schemas reads each
board, loses nothing of it, and finds every value of the type that it should be.
"""

from __future__ import annotations

import enum
import json
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from control.grafana.boards import BOARDS
from control.grafana.panels import Board

# Without them what belongs to one kind of panel or of data source is read as it comes.
register_default_plugins()

each_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def findings(told: dict[str, Any]) -> list[str]:
    """Return what Grafana would not read as it stands in `told`."""
    read = Dashboard.from_json(told)
    written = json.loads(JSONEncoder().encode(read))
    return [*lost(told, written, ""), *mistyped(Dashboard, read, "")]


def lost(told: Any, written: Any, path: str) -> Iterator[str]:
    """Tell what did not come through; what was added are defaults."""
    match told, written:
        case dict(), dict():
            for key, value in told.items():
                if key in written:
                    yield from lost(value, written[key], f"{path}/{key}")
                else:
                    yield f"{path}/{key} is unknown"
        case list(), list() if len(told) == len(written):
            for number, pair in enumerate(zip(told, written, strict=True)):
                yield from lost(*pair, f"{path}/{number}")
        case _ if told != written:
            yield f"{path} became {written!r}"


def mistyped(expected: Any, value: Any, path: str) -> Iterator[str]:
    """Tell what is not of the type that the model's annotations say."""
    origin, within = typing.get_origin(expected), typing.get_args(expected)
    if origin in {typing.Union, types.UnionType}:
        tried = [list(mistyped(each, value, path)) for each in within]
        yield from min(tried, key=len)
    elif origin is typing.Literal:
        if value not in within:
            yield f"{path} is {value!r}"
    elif origin is list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from mistyped(within[0], item, f"{path}/{number}")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from mistyped(within[1], item, f"{path}/{key}")
    elif isinstance(origin or expected, type) and not _is(origin or expected, value):
        yield f"{path} is {value!r}"
    elif hasattr(value, "to_json"):
        names = vars(sys.modules[type(value).__module__])
        for name, hint in typing.get_type_hints(type(value), names).items():
            yield from mistyped(hint, getattr(value, name), f"{path}/{name}")


def _is(expected: type, value: Any) -> bool:
    if issubclass(expected, enum.Enum):
        return value in [each.value for each in expected] or value in list(expected)
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    # A query's class is that of its data source, which the model knows by its base alone.
    return expected is object or isinstance(value, expected) or hasattr(value, "to_json")


@each_board
def test_grafanas_model_reads_a_board_and_loses_nothing(board: Board) -> None:
    assert findings(board.to_json()) == []


@each_board
@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda told: told.update(refresh=5), "/refresh is 5"),
        (lambda told: told.update(unknown=True), "/unknown is unknown"),
        (lambda told: told.update(graphTooltip=7), "/graph_tooltip is 7"),
        (lambda told: told.update(tags="trainmaster"), "/tags is 'trainmaster'"),
        (lambda told: told["panels"][0]["gridPos"].update(w="12"), "/panels/0/grid_pos/w is '12'"),
        (
            lambda told: told["panels"][0]["options"].update(wide=1),
            "/panels/0/options/wide is unkn",
        ),
        (
            lambda told: told["panels"][0]["targets"][0].update(expr=1),
            "/panels/0/targets/0/expr is 1",
        ),
    ],
)
def test_the_check_notices_what_grafana_would_not_read(
    board: Board, spoil: Any, found: str
) -> None:
    told = json.loads(json.dumps(board.to_json()))
    spoil(told)
    assert any(each.startswith(found) for each in findings(told)), findings(told)
