"""Rules that ask: answered once, by one person, or by nobody in time; and rules kept quiet."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from control.decide import decide
from control.snapshot import Silence
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, running
from tests.unit.control.test_incidents import rule
from trainmaster.rule import Rule


def asking(mode: str = "ask", **changes) -> Ring:
    """A run of which the rule's condition holds since step 61, up to the first turn that sees
    it.
    """
    watched = rule(mode=mode, **changes)
    ring = Ring(replace(running(), rules=(watched,)))
    ring.train(60)
    ring.settle()
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    return ring


def answer(ring: Ring, kind: str, number: int = 1, *, by: str = "ada", **args):
    asked = replace(at.request(kind, number, incident="alpha-i1", **args), actor=by)
    ring.tell(requests=(*ring.snapshot.requests, asked))


def incident(ring: Ring):
    [found] = ring.snapshot.incidents
    return found


def test_a_rule_that_asks_waits_with_what_it_would_do():
    ring = asking()
    found = incident(ring)
    assert (found.state, found.actions) == ("waiting", ())
    assert found.proposed["action"]["action"] == "rollback"
    assert datetime.fromisoformat(found.proposed["answer_by"]) > NOW
    assert ring.snapshot.run.state == "running"


def test_an_approved_action_is_taken_and_says_by_whom():
    ring = asking()
    answer(ring, "approve", by="ada")
    first, *_ = ring.settle()
    [change] = first.incidents
    assert change.state == "verifying"
    assert "ada approved to" in change.because
    assert change.proposed is None
    assert first.attempt_end.state == "rolled_back"
    [told] = first.requests
    assert (told.id, told.state) == (1, "applied")


def test_another_action_may_be_approved_than_the_one_proposed():
    ring = asking()
    answer(ring, "approve", action="checkpoint")
    first = decide(ring.snapshot, now=ring.now)
    assert [order.kind for order in first.orders] == ["checkpoint"]
    assert first.attempt_end is None


def test_a_dismissed_incident_is_closed_and_does_not_ask_again():
    ring = asking()
    answer(ring, "dismiss")
    first, *_ = ring.settle()
    [change] = first.incidents
    assert (change.closed, change.closed_as) == (True, "dismissed")
    ring.train(64, bad=(64,))
    assert all(not each.incidents for each in ring.settle())


def test_of_two_answers_at_once_one_counts_and_the_other_is_told():
    ring = asking()
    answer(ring, "dismiss", 1, by="ada")
    answer(ring, "approve", 2, by="bob")
    first = decide(ring.snapshot, now=ring.now)
    told = {each.id: each for each in first.requests}
    assert (told[1].state, told[2].state) == ("applied", "refused")
    assert "somebody else" in told[2].because
    assert first.attempt_end is None


def test_an_answer_to_what_does_not_ask_is_refused():
    ring = asking(mode="observe")
    answer(ring, "approve")
    first = decide(ring.snapshot, now=ring.now)
    [told] = first.requests
    assert told.state == "refused"
    assert "does not wait" in told.because


@pytest.mark.parametrize(("then", "state"), [("dismiss", "closed"), ("act", "verifying")])
def test_when_nobody_answers_the_rule_says_what_happens(then: str, state: str):
    ring = asking(ask={"deadline_s": 60.0, "then": then})
    ring.advance(30)
    assert decide(ring.snapshot, now=ring.now).incidents == ()
    ring.advance(600)
    late = decide(ring.snapshot, now=ring.now)
    [change] = late.incidents
    assert change.state == state
    assert "nobody answered" in change.because


def test_a_proposal_ends_with_the_generation_that_it_is_about():
    ring = asking()
    other = at.attempt(2, parent_generation=1, started_at=ring.now)
    ended = replace(ring.snapshot.attempts[0], ended_at=ring.now, state="failed")
    snapshot = replace(
        ring.snapshot,
        run=replace(ring.snapshot.run, generation=2),
        attempts=(ended, other),
        windows={},
    )
    late = decide(snapshot, now=ring.now)
    [change] = late.incidents
    assert change.closed_as == "dismissed"
    assert "has ended" in change.because


@pytest.mark.parametrize("name", ["gradient not finite", None])
def test_a_silenced_rule_is_judged_and_shown_and_does_nothing(name: str | None):
    watched: Rule = rule()
    ring = Ring(replace(running(), rules=(watched,)))
    ring.train(60)
    ring.settle()
    until = NOW + timedelta(hours=9)
    ring.snapshot = replace(ring.snapshot, silences=(Silence(1, name, until),))
    ring.train(63, bad=(61, 62, 63))
    decisions = ring.settle()
    assert [each.state for each in ring.snapshot.alerts] == ["firing"]
    assert all(not each.incidents and each.attempt_end is None for each in decisions)
    ring.snapshot = replace(ring.snapshot, silences=())
    assert any(each.attempt_end is not None for each in ring.settle()), "it acts once it may"


def warning(name: str, **changes) -> Rule:
    return rule(name=name, mode="observe", actions=[], **changes)


def joined(ring: Ring) -> dict[str, str | None]:
    return {each.rule: each.incident for each in ring.snapshot.alerts if each.state == "firing"}


def test_warnings_about_the_same_time_belong_to_the_incident():
    early = warning("early", **{"for": {"steps": 1}})
    late = warning("late", **{"for": {"steps": 5, "within": 20}})
    acting = rule(mode="ask")
    ring = Ring(replace(running(), rules=(early, late, acting)))
    ring.train(60)
    ring.settle()
    ring.train(61, bad=(61,))
    ring.settle()
    assert joined(ring) == {"early": None}, "nothing to belong to yet"
    ring.train(63, bad=(62, 63))
    ring.settle()
    assert joined(ring) == {"early": "alpha-i1", "gradient not finite": "alpha-i1"}
    ring.train(65, bad=(64, 65))
    ring.settle()
    assert joined(ring)["late"] == "alpha-i1"
    answer(ring, "dismiss")
    ring.settle()
    assert ring.snapshot.incidents == ()


@pytest.mark.parametrize("told_at", [30, 120])
def test_what_began_long_before_or_after_does_not(told_at):
    other = warning("other", metric="loss", when={"condition": "above", "value": 1e6})
    ring = Ring(replace(running(), rules=(other, rule(mode="ask"))))
    ring.train(60)
    ring.settle()
    ring.train(63, bad=(61, 62, 63))
    ring.settle()
    ring.train(125)
    told = tuple(
        replace(each, value=1e7) if each.step >= told_at else each
        for each in ring.snapshot.windows["loss"]
    )
    ring.tell(windows={**ring.snapshot.windows, "loss": told})
    ring.settle()
    assert joined(ring)["other"] is None
