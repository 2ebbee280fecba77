from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dashboard.views.run_marks import HEAD, MARKED, moves, refused
from trainmaster.errors import UnavailableError

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "seconds", "requests", "expected"),
    [
        ("running", 900, [], True),
        ("succeeded", 900, [], False),
        ("succeeded", 3, [], True),
        ("stopped", 900, [{"state": "accepted"}], True),
        ("stopped", 900, [{"state": "applied"}], False),
    ],
)
def test_a_run_is_looked_at_until_its_last_facts_and_requests_are_settled(
    state: str, seconds: float, requests: list[dict[str, Any]], expected: bool
) -> None:
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    assert moves({"state": state, "state_since": since}, requests, NOW) is expected


def test_what_cannot_be_read_has_a_mark_by_which_its_return_is_seen() -> None:
    assert refused(UnavailableError("away")) == dict.fromkeys((HEAD, *MARKED), "unavailable!")
