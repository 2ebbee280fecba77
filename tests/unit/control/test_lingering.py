"""Starts, restores, saves and first steps that take very long: told, and nothing is ended."""

from __future__ import annotations

import pytest

from control.snapshot import Pulse, RunSnapshot
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import ranks, running, with_rank

TAKEN = at.samples(dict.fromkeys(range(1, 51), 0.1))


def standing(section: str, still_s: float, *, learned: bool = True) -> RunSnapshot:
    """Alpha, of which rank 2 stands still in a section while the others wait for it."""
    found = ranks(pulse=Pulse("step", "wait", 51, 0.5, 0.5))
    found = with_rank(found, 2, pulse=Pulse(section, "other", 51, still_s, still_s))
    windows = at.windows(50) | ({"step_time_s": TAKEN} if learned else {})
    return running(ranks=found, windows=windows)


def told(snapshot: RunSnapshot) -> list[tuple[str, str, str]]:
    ring = Ring(snapshot)
    decisions = ring.settle()
    assert not any(each.attempt_end for each in decisions), "nothing is ended"
    return [(a.scope, a.state, a.severity) for each in decisions for a in each.alerts]


@pytest.mark.parametrize(
    ("section", "patience_s"),
    [("starting", 900), ("restoring", 1800), ("checkpoint", 600), ("ending", 600)],
)
def test_a_rank_that_takes_very_long_is_named_and_not_ended(section, patience_s):
    assert told(standing(section, patience_s - 1)) == []
    assert told(standing(section, patience_s + 1)) == [("rank 2", "firing", "warning")]


def test_the_first_steps_have_a_limit_of_their_own_and_later_ones_a_learned_one():
    assert told(standing("step", 899, learned=False)) == []
    assert told(standing("step", 901, learned=False)) == [("rank 2", "firing", "warning")]


@pytest.mark.parametrize("section", ["evaluating", "held"])
def test_what_a_workload_or_a_person_decides_has_no_limit(section):
    assert told(standing(section, 1e6)) == []


def test_it_is_told_once_and_over_when_the_rank_comes_on():
    ring = Ring(standing("restoring", 2000))
    [fired] = ring.settle()
    [event] = [each for each in fired.events if each.kind == "alert_firing"]
    assert "at restoring for 2000 s, and 1800 s is long" in event.because
    ring.tell(ranks=ranks())
    [over] = ring.settle()
    assert [each.state for each in over.alerts] == ["resolved"]
