"""What people ask, in every state, and how each request ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.decide import decide
from control.lifecycle import ALLOWED_FROM, State
from control.snapshot import DrillStatus, OrderStatus
from tests.fakes import snapshots as at
from tests.fakes.asked import answers, finished, obey, resting
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, request, running
from trainmaster.orders import Drill


def test_pause_is_applied_when_the_ranks_have_ended():
    ring = Ring(running(requests=(request("pause"),)))
    [asked] = ring.settle()
    assert (asked.state, asked.desired) == ("pausing", "paused")
    assert answers(asked)[1].state == "accepted"
    assert (asked.orders[0].kind, asked.orders[0].args) == ("stop", {"checkpoint": True})
    obey(ring)
    assert ring.settle() == []
    finished(ring, ordered=True)
    [done] = ring.settle()
    assert done.state == "paused"
    assert (answers(done)[1].state, answers(done)[1].step) == ("applied", 55)


def test_pause_of_a_queued_run_is_applied_at_once():
    snapshot = running(state="queued", attempts=(), ranks=(), nodes=(), checkpoints=())
    decision = decide(change(snapshot, requests=(request("pause"),)), now=NOW)
    assert decision.state == "paused"
    assert answers(decision)[1].state == "applied"


def test_hold_and_release():
    ring = Ring(running(requests=(request("pause", hold=True),)))
    ring.settle()
    assert ring.snapshot.run.state == "running"
    obey(ring)
    [held] = ring.settle()
    assert held.state == "held"
    assert answers(held)[1].state == "applied"
    ring.tell(requests=(request("resume", 2),))
    [asked] = ring.settle()
    assert [each.kind for each in asked.orders] == ["release"]
    obey(ring, 55)
    [released] = ring.settle()
    assert released.state == "running"
    assert answers(released)[2].state == "applied"
    assert ring.snapshot.run.generation == 1


def test_a_held_run_that_lost_a_rank_is_held_again():
    ring = Ring(running(requests=(request("pause", hold=True),)))
    ring.settle()
    obey(ring)
    ring.settle()
    ring.kill()
    ring.settle()
    assert ring.snapshot.run.state == "starting"
    assert [each.kind for each in ring.snapshot.orders] == ["hold"], "it is there before they are"
    ring.tell(requests=(request("resume", 2),))
    refused = answers(ring.settle()[0])[2]
    assert (refused.state, "resume it then" in refused.because) == ("refused", True)
    ring.ready()
    ring.settle()
    assert [each.kind for each in ring.snapshot.orders] == ["hold"]
    obey(ring)
    ring.settle()
    assert ring.snapshot.run.state == "held"


def test_a_hold_that_was_not_applied_ends_with_its_generation():
    ring = Ring(running(requests=(request("pause", hold=True),)))
    ring.settle()
    ring.kill()
    decision = ring.turn()
    assert answers(decision)[1].state == "refused"
    assert "superseded" in answers(decision)[1].because
    assert ring.snapshot.run.desired == "running"


def test_hold_of_a_queued_run_is_refused():
    snapshot = running(state="queued", attempts=(), ranks=(), nodes=())
    decision = decide(change(snapshot, requests=(request("pause", hold=True),)), now=NOW)
    assert answers(decision)[1].state == "refused"


def test_stop_takes_a_checkpoint_unless_told_not_to():
    for args, expected in (({}, True), ({"checkpoint": False}, False)):
        ring = Ring(running(requests=(request("stop", **args),)))
        [asked] = ring.settle()
        assert asked.orders[0].args == {"checkpoint": expected}
        finished(ring, ordered=True)
        [done] = ring.settle()
        assert (done.state, done.attempt_end.state) == ("stopped", "stopped")
        assert answers(done)[1].state == "applied"


@pytest.mark.parametrize("state", ["unreachable", "starting"])
def test_stop_ends_the_attempt_where_ranks_cannot_answer(state):
    snapshot = running(
        state=state, attempts=(at.attempt(ready_at=None, first_step=None, last_step=None),)
    )
    silent = at.node(silent_s=30 if state == "unreachable" else 0)
    snapshot = change(snapshot, nodes=(silent,), ranks=at.ranks(state="started"))
    decision = decide(change(snapshot, requests=(request("stop"),)), now=NOW)
    assert decision.state == "stopped"
    assert decision.attempt_end is not None


def test_ranks_that_do_not_answer_a_stop_are_ended_after_a_minute():
    ring = Ring(running(requests=(request("stop"),)))
    ring.settle()
    ring.advance(59)
    assert ring.settle() == []
    ring.advance(1)
    [decision] = ring.settle()
    assert decision.state == "stopped"
    assert answers(decision)[1].state == "applied"
    assert "did not answer within 60 s" in decision.because


def test_ranks_that_write_their_last_checkpoint_get_more_time():
    ring = Ring(running(requests=(request("stop"),)))
    ring.settle()
    obey(ring)
    ring.advance(300)
    assert ring.settle() == []


def test_the_minute_begins_anew_when_control_was_away():
    ring = Ring(running(requests=(request("stop"),)))
    ring.settle()
    ring.advance(600)
    ring.tell(control_up_since=ring.now)
    assert ring.settle() == []


def test_a_run_that_finishes_before_it_can_pause_has_succeeded():
    ring = Ring(running(requests=(request("pause"),)))
    ring.settle()
    finished(ring, ordered=False, step=400)
    [done] = ring.settle()
    assert done.state == "succeeded"
    assert answers(done)[1].state == "refused"


@pytest.mark.parametrize("kind", ["checkpoint", "timeline"])
def test_what_is_to_happen_at_a_step_is_applied_with_it(kind):
    ring = Ring(running(requests=(request(kind),)))
    ring.settle()
    obey(ring, 57)
    [done] = ring.settle()
    assert (answers(done)[1].state, answers(done)[1].step) == ("applied", 57)


def test_an_order_that_the_ranks_refuse_refuses_its_request():
    ring = Ring(running(requests=(request("pause"),)))
    ring.settle()
    ring.tell(
        orders=tuple(
            replace(each, state="refused", because="the disk is full")
            for each in ring.snapshot.orders
        )
    )
    ring.settle()
    refused = answers(ring.decisions[-2])[1]
    assert (refused.state, refused.because) == ("refused", "the disk is full")
    assert (ring.snapshot.run.state, ring.snapshot.run.desired) == ("running", "running")


@pytest.mark.parametrize("kind", ["pause", "stop"])
@pytest.mark.parametrize(("step", "told"), [(7, True), (400, False)])
def test_who_cannot_take_a_last_checkpoint_is_told_how_to_end_without(kind, step, told):
    ring = Ring(running(requests=(request(kind),)))
    ring.settle()
    ring.tell(
        orders=tuple(
            replace(each, state="refused", step=step, because="the disk is full")
            for each in ring.snapshot.orders
        )
    )
    ring.settle()
    refused = answers(ring.decisions[-2])[1]
    assert ("stop RUN --no-checkpoint" in refused.because) == told


@pytest.mark.parametrize("kind", ["checkpoint", "timeline"])
def test_what_a_dead_generation_left_undone_is_refused_as_superseded(kind):
    ring = Ring(running(requests=(request(kind),)))
    ring.settle()
    ring.kill()
    decision = ring.turn()
    assert answers(decision)[1].state == "refused"
    assert answers(decision)[1].because == "superseded: rank 3 killed by signal 9"


@pytest.mark.parametrize("state", ["paused", "stopped", "failed"])
def test_resume_goes_on_from_the_newest_checkpoint_and_is_applied_when_ranks_have_met(state):
    ring = Ring(resting(state, requests=(request("resume"),)))
    ring.settle()
    new = ring.snapshot.attempt
    assert (new.cause_kind, new.resumed_from_step) == ("resume", 50)
    assert "ada resumed the run" in new.cause
    assert ring.snapshot.requests[0].state == "accepted"
    ring.ready()
    [done] = ring.settle()
    assert done.state == "running"
    assert answers(done)[1].state == "applied"


@pytest.mark.parametrize("kind", sorted(ALLOWED_FROM))
@pytest.mark.parametrize("state", State)
def test_what_a_state_does_not_allow_is_refused_with_a_sentence(kind, state):
    if state in ALLOWED_FROM[kind]:
        return
    snapshot = running(state=state, requests=(request(kind),))
    if state not in {"starting", "running", "held", "unreachable", "pausing", "stopping"}:
        snapshot = resting(state, requests=(request(kind),))
    if state == "unreachable":
        snapshot = change(snapshot, nodes=(at.node(silent_s=30),))
    if state == "starting":
        newest = at.attempt(ready_at=None, first_step=None, last_step=None)
        snapshot = change(snapshot, attempts=(newest,), ranks=at.ranks(state="started"))
    refused = answers(decide(snapshot, now=NOW))[1]
    assert refused.state == "refused"
    assert state in refused.because


def test_a_drill_is_sent_to_the_generation():
    asked = request("drill", 9, fault="nan", rank=1, at_step=60, steps=5)
    decision = decide(running(requests=(asked,)), now=NOW)
    [sent] = decision.drills
    assert (sent.generation, sent.request) == (1, 9)
    assert sent.drill == Drill(id=9, fault="nan", rank=1, at_step=60, steps=5)
    assert answers(decision)[9].state == "applied"


def test_a_drill_that_is_not_known_is_refused():
    decision = decide(running(requests=(request("drill", fault="flood"),)), now=NOW)
    assert answers(decision)[1].state == "refused"
    assert "fault" in answers(decision)[1].because


def test_a_drill_for_steps_that_have_passed_is_refused():
    asked = request("drill", fault="nan", at_step=44, steps=5)
    decision = decide(running(requests=(asked,)), now=NOW)
    assert decision.drills == ()
    assert "has reached step 50" in answers(decision)[1].because


def test_a_sticky_drill_is_carried_as_the_batches_it_fired_for_and_others_are_not():
    fired = DrillStatus(Drill(id=1, fault="nan", steps=5, sticky=True), 1, ((1, 52, 52),))
    named = DrillStatus(Drill(id=2, fault="nan", at_step=70, steps=2, sticky=True), 1)
    plain = DrillStatus(Drill(id=3, fault="nan", at_step=70), 1)
    ring = Ring(running(drills=(fired, named, plain)))
    ring.kill()
    begun = ring.settle()[-1]
    assert [(each.drill.id, each.drill.batches, each.generation) for each in begun.drills] == [
        (1, ((52, 56),), 2),
        (2, ((70, 71),), 2),
    ]


def test_orders_of_a_person_are_not_repeated():
    pause = replace(request("pause", state="accepted"), generation=1, order_seq=1)
    order = OrderStatus(1, "stop", {"checkpoint": True}, "sent", request=1, sent_at=NOW)
    snapshot = running(state="pausing", desired="paused", requests=(pause,), orders=(order,))
    assert not decide(snapshot, now=NOW).orders
