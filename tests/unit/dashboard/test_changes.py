"""A document that changes a little at a time."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dashboard.changes import MOST_CHARS, MOST_STEPS, Change, Told, changes

POINTS = "QUJD" * 40
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("aé", max_size=3)
GROWN = st.integers(0, 60).map(lambda count: POINTS[: 100 + count])
DOCUMENTS = st.recursive(
    SCALARS | GROWN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


def changed(node: Any, change: Change) -> Any:
    """What `changed` of charts.js does."""
    path, kept, told = change
    if not path:
        return told if kept < 0 else node[:kept] + told
    copy = list(node) if isinstance(node, list) else dict(node)
    copy[path[0]] = changed(node[path[0]], (path[1:], kept, told))
    return copy


def follow(document: Any, steps: str) -> Any:
    for step in json.loads(steps):
        for change in step:
            document = changed(document, change)
    return document


@given(DOCUMENTS, DOCUMENTS)
def test_what_has_changed_makes_one_document_of_the_other(before: Any, after: Any) -> None:
    document = before
    for change in changes(before, after):
        document = changed(document, change)
    assert document == after


def test_of_points_that_have_grown_only_the_new_ones_are_told() -> None:
    before = {"panels": [{"id": "loss", "y": POINTS}, {"id": "lr", "y": POINTS}], "notes": []}
    after = {"panels": [{"id": "loss", "y": POINTS + "REVG"}, before["panels"][1]], "notes": []}
    assert changes(before, after) == [(["panels", 0, "y"], len(POINTS), "REVG")]


def test_who_has_one_of_the_last_versions_is_told_the_steps_since() -> None:
    told, versions, documents = Told(), [], []
    for count in range(MOST_STEPS + 3):
        documents.append({"y": POINTS + "REVG" * count})
        told.tell(documents[-1])
        versions.append(told.version)
    assert len(set(versions)) == len(versions)
    assert json.loads(told.whole()) == documents[-1]
    for version, document in list(zip(versions, documents, strict=True))[-MOST_STEPS:]:
        steps = told.since(version)
        assert steps is not None
        assert follow(document, steps) == documents[-1]
    assert told.since(versions[0]) is None
    assert told.since("") is None
    assert told.since("of another process") is None


def test_what_has_not_changed_keeps_its_version_and_too_much_is_told_whole() -> None:
    told = Told()
    told.tell({"y": "a"})
    first = told.version
    told.tell({"y": "a"})
    assert told.version == first
    assert told.since(first) == "[]"
    told.tell({"y": "b" * (MOST_CHARS + 1)})
    assert told.since(first) is None
    assert json.loads(told.whole()) == {"y": "b" * (MOST_CHARS + 1)}
