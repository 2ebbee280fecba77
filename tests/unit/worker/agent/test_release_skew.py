"""Today's agent hears the control plane of the release before: its real answers, recorded
(tests/data/wire).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster.spec import RunSpec
from trainmaster.wire import SyncReply

RECORDED = Path(__file__).parents[3] / "data" / "wire" / "release-0.1.0.json"
ANSWERS: list[dict[str, Any]] = [
    each["answered"] for each in json.loads(RECORDED.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_all_that_an_old_control_plane_answers_is_understood(answer: dict[str, Any]) -> None:
    reply = SyncReply.model_validate_json(json.dumps(answer))
    assert reply.protocol == 1, "it names none"
    now = reply.model_dump(mode="json")
    for told, assignment in zip(now["assignments"], reply.assignments, strict=True):
        told["spec"] = assignment.spec.model_dump(mode="json")
        told["plan"] = assignment.plan.model_dump(mode="json")
    assert _holds(now, answer)


def test_the_recording_holds_what_there_is_to_understand() -> None:
    replies = [SyncReply.model_validate(answer) for answer in ANSWERS]
    assert {chore.kind for reply in replies for chore in reply.chores} == {"describe"}
    orders = [o.kind for reply in replies for a in reply.assignments for o in a.orders]
    assert orders == ["checkpoint"]
    assert {a.generation for reply in replies for a in reply.assignments} == {1, 2}


@pytest.mark.parametrize("answer", [each for each in ANSWERS if each["assignments"]])
def test_an_agent_of_the_release_before_is_told_nothing_that_it_would_refuse(
    answer: dict[str, Any],
) -> None:
    """It forbids unknown keys in specs and plans. The recording has all keys that it knew: it was
    made by a release that left none out.
    """
    reply = SyncReply.model_validate(answer)
    for now, then in zip(
        reply.model_dump(mode="json")["assignments"], answer["assignments"], strict=True
    ):
        assert _unknown(now["spec"], then["spec"]) == []
        assert _unknown(now["plan"], then["plan"]) == []


def test_no_default_of_a_spec_has_changed_since_the_release_before() -> None:
    """What is as it is by default is not said, so both sides must mean the same by it."""
    then = next(a for answer in ANSWERS for a in answer["assignments"])["spec"]
    given = {
        "name": then["name"],
        "workload": then["workload"],
        "params": then["params"],
        "train": {key: then["train"][key] for key in ("steps", "global_batch")},
        "parallel": {key: then["parallel"][key] for key in ("replicas", "stages", "micro_batch")},
    }
    now = RunSpec.model_validate(given).model_dump(mode="json")
    # None means the schedule's own number, 1 for all schedules of that release; ranks follow the
    # plan, where it is resolved.
    assert (now["parallel"].pop("virtual"), then["parallel"].pop("virtual")) == (None, 1)
    # Where ranks are placed is the control plane's affair alone.
    assert (now["placement"].pop("nodes"), then["placement"].pop("nodes")) == (None, 1)
    assert _holds(now, then)


def _unknown(now: Any, then: Any, path: str = "") -> list[str]:
    """The paths in what is said now that were not there then."""
    if isinstance(now, dict) and isinstance(then, dict):
        found = [f"{path}.{key}" for key in now if key not in then]
        for key in now.keys() & then.keys():
            found += _unknown(now[key], then[key], f"{path}.{key}")
        return found
    if isinstance(now, list) and isinstance(then, list):
        parts = zip(now, then, strict=False)
        return [each for a, b in parts for each in _unknown(a, b, f"{path}[]")]
    return []


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
