"""Today's agent hears the control plane of the release before: its real answers, recorded
(tests/data/wire).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster.wire import SyncReply

RECORDED = Path(__file__).parents[3] / "data" / "wire" / "release-0.1.0.json"
ANSWERS: list[dict[str, Any]] = [
    each["answered"] for each in json.loads(RECORDED.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_all_that_an_old_control_plane_answers_is_understood(answer: dict[str, Any]) -> None:
    reply = SyncReply.model_validate_json(json.dumps(answer))
    assert reply.protocol == 1, "it names none"
    again = reply.model_dump(mode="json")
    for key, value in answer.items():
        assert _holds(again[key], value), key


def test_the_recording_holds_what_there_is_to_understand() -> None:
    replies = [SyncReply.model_validate(answer) for answer in ANSWERS]
    assert {chore.kind for reply in replies for chore in reply.chores} == {"describe"}
    orders = [o.kind for reply in replies for a in reply.assignments for o in a.orders]
    assert orders == ["checkpoint"]
    assert {a.generation for reply in replies for a in reply.assignments} == {1, 2}


def _holds(now: Any, then: Any) -> bool:
    """Whether all that was said then is still there: a newer model may only add."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(
            key in now and _holds(now[key], value) for key, value in then.items()
        )
    if isinstance(then, list):
        return (
            isinstance(now, list)
            and len(now) == len(then)
            and all(_holds(a, b) for a, b in zip(now, then, strict=True))
        )
    return bool(now == then)
