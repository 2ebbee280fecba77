from datetime import UTC, datetime, timedelta

import pytest

from dashboard.postponed import Postponed

PRESSED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("after_s", "standing", "left_s"),
    [(0, "waits", 5), (4.5, "waits", 0.5), (5, "due", 0), (14, "due", 0), (15, "left", 0)],
)
def test_a_stop_waits_is_due_and_is_dropped_when_nobody_looked(
    after_s: float, standing: str, left_s: float
) -> None:
    stop = Postponed({"checkpoint": True}, "", {"id": "r1"}, PRESSED)
    now = PRESSED + timedelta(seconds=after_s)
    assert (stop.standing(now), stop.left_s(now)) == (standing, left_s)


def test_that_it_was_dropped_is_told_for_two_minutes() -> None:
    stop = Postponed({}, "", {}, PRESSED)
    assert stop.standing(PRESSED + timedelta(seconds=119)) == "left"
    assert stop.standing(PRESSED + timedelta(seconds=120)) == "past"
