"""What others know of a node that is not heard: one function, one table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.liveness.witnesses import FAILURES, FRESH_S, verdict
from control.snapshot import Reach
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, ranks, running, with_rank

LOST = Reach("oak", "elm", NOW, answers=False, failures=FAILURES, ever=True)
STALE = NOW - timedelta(seconds=FRESH_S + 1)


@pytest.mark.parametrize(
    ("reaches", "fate"),
    [
        ([], "unknown"),
        ([replace(LOST, answers=True, failures=0)], "alive"),
        ([LOST], "gone"),
        ([replace(LOST, failures=FAILURES - 1)], "unknown"),
        ([replace(LOST, failures=1, refused=True)], "gone"),
        ([replace(LOST, ever=False)], "unknown"),
        ([replace(LOST, ever=False, refused=True)], "unknown"),
        ([replace(LOST, stored=True)], "alive"),
        ([LOST, replace(LOST, witness="ash", answers=True)], "alive"),
        ([LOST, replace(LOST, witness="ash", ever=False)], "gone"),
        ([LOST, replace(LOST, witness="ash", stored=True)], "alive"),
        ([replace(LOST, at=STALE)], "unknown"),
        ([replace(LOST, witness="fir")], "unknown"),
        ([replace(LOST, node="yew")], "unknown"),
    ],
    ids=[
        "nobody looked",
        "a neighbour reaches it",
        "a neighbour lost it",
        "not for long enough",
        "its machine says that no agent is there",
        "it was never reached",
        "nor was there ever an agent",
        "it beats in the store",
        "one neighbour lost it and another reaches it",
        "one lost it and another never reached it",
        "one lost it, and it beats in the store",
        "too long ago",
        "who is silent himself",
        "about another node",
    ],
)
def test_verdict(reaches: list[Reach], fate: str) -> None:
    assert verdict("elm", reaches, ["oak", "ash"], now=NOW).fate == fate


def apart(*reaches: Reach, silent_s: float = 11.0, **changes: object):
    """Alpha on two nodes, one of which is not heard."""
    found = with_rank(with_rank(ranks(), 2, node="elm", slot=0), 3, node="elm", slot=1)
    return running(
        ranks=found,
        nodes=(at.node("ash"), at.node("elm", silent_s=silent_s), at.node("oak")),
        reaches=reaches,
        **changes,
    )


def test_a_node_whose_neighbour_lost_it_is_recovered_from_within_its_lease():
    ring = Ring(apart(LOST))
    ended, begun = ring.settle()
    assert ended.attempt_end.state == "lost"
    assert ended.attempt_end.because == (
        "node elm is gone (node oak reached it before and does not now: it is silent)"
    )
    assert {each.node for each in begun.new_attempt.placements} == {"oak"}


def test_a_node_that_a_neighbour_reaches_is_left_alone_however_long_it_is_silent():
    ring = Ring(apart(replace(LOST, answers=True, failures=0), silent_s=600.0))
    [decision] = ring.settle()
    assert decision.state == "unreachable"
    assert decision.attempt_end is None
    assert "node oak still reaches its agent" in decision.because


def test_a_node_of_which_nobody_knows_is_left_to_a_person():
    ring = Ring(apart(silent_s=600.0))
    [decision] = ring.settle()
    assert decision.state == "unreachable"
    assert "there is no witness" in decision.because


def test_a_neighbour_that_lost_a_node_in_contact_says_nothing_of_it():
    ring = Ring(apart(LOST, silent_s=1.0))
    assert all(each.state is None for each in ring.settle())
    assert ring.snapshot.run.state == "running"
