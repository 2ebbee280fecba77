"""What people ask, in every state, and how each request ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.decide import decide
from control.lifecycle import ALLOWED_FROM, State
from control.lineage import newest_step
from control.snapshot import DrillStatus, OrderStatus
from tests.fakes import snapshots as at
from tests.fakes.snapshots import NOW, Ring, change, request, running
from trainmaster.orders import Drill


def answers(decision):
    return {each.id: each for each in decision.requests}


def finished(ring: Ring, *, ordered: bool, step: int = 55) -> None:
    """Let all ranks end as they were told."""
    found = ring.snapshot.ranks
    told = {"step": step, "ordered": ordered}
    for number in range(4):
        found = at.with_rank(
            found, number, state="exited", exit_code=0, exited_at=NOW, finished=told
        )
    ring.tell(ranks=found)


def obey(ring: Ring, step: int = 55) -> None:
    """Let the ranks apply all orders."""
    ring.tell(
        orders=tuple(replace(each, state="applied", step=step) for each in ring.snapshot.orders)
    )


def resting(state: str, **changes):
    newest = at.attempt(ended_at=NOW - timedelta(minutes=1), because="rank 3 killed by signal 9")
    return running(
        state=state, attempts=(newest,), nodes=(at.node(),), desired="stopped", **changes
    )


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


def test_restore_begins_a_new_generation_from_the_checkpoint():
    ring = Ring(running(requests=(request("restore", checkpoint="alpha-g1-s30"),)))
    ended, begun = ring.settle()
    assert ended.attempt_end.state == "superseded"
    new = begun.new_attempt
    assert (new.cause_kind, new.resumed_from_checkpoint) == ("restore", "alpha-g1-s30")
    assert (new.skip, new.lr_factor, new.lr_windows) == ((), None, ())
    assert {each.id for each in begun.checkpoints if each.abandoned} == {
        "alpha-g1-s40",
        "alpha-g1-s50",
    }
    assert ring.snapshot.requests[0].state == "accepted"
    ring.ready()
    [done] = ring.settle()
    assert answers(done)[1].state == "applied"


def test_a_restore_whose_attempt_begins_and_ends_between_two_looks_is_applied():
    ring = Ring(running(requests=(request("restore", checkpoint="alpha-g1-s50"),)))
    ring.settle()
    ring.ready()
    finished(ring, ordered=False, step=400)
    [done] = ring.settle()
    assert done.state == "succeeded"
    assert answers(done)[1].state == "applied"


@pytest.mark.parametrize("state", sorted({*ALLOWED_FROM["restore"]} - {"running"}))
def test_restore_needs_no_resume(state):
    asked = request("restore", checkpoint="alpha-g1-s30")
    snapshot = resting(state, requests=(asked,))
    if state in {"held", "unreachable"}:
        snapshot = running(state=state, requests=(asked,))
    ring = Ring(snapshot)
    ring.settle()
    assert ring.snapshot.run.state == "starting"
    assert ring.snapshot.run.desired == "running"


def test_two_restores_one_refused():
    asked = (
        request("restore", 1, checkpoint="alpha-g1-s30"),
        request("restore", 2, checkpoint="alpha-g1-s40"),
    )
    ring = Ring(running(requests=asked))
    decision = ring.turn()
    assert answers(decision)[1].state == "accepted"
    assert answers(decision)[2].state == "refused"
    assert "restore" in answers(decision)[2].because
    ring.settle()
    assert ring.snapshot.attempt.resumed_from_checkpoint == "alpha-g1-s30"


def test_a_restore_is_refused_while_another_is_not_applied():
    ring = Ring(running(requests=(request("restore", 1, checkpoint="alpha-g1-s30"),)))
    ring.settle()
    late = request("restore", 2, checkpoint="alpha-g1-s40")
    ring.tell(requests=(*ring.snapshot.requests, late))
    decision = ring.turn()
    assert answers(decision)[2].state == "refused"


def test_restore_skips_lowers_and_replans_as_asked():
    asked = request(
        "restore",
        checkpoint="alpha-g1-s30",
        skip_steps=5,
        lr_factor=0.5,
        plan={"parallel": {"replicas": 4, "stages": 1, "micro_batch": 8}},
    )
    ring = Ring(running(requests=(asked,)))
    ring.settle()
    new = ring.snapshot.attempt
    assert new.own_skip == new.skip == ((31, 35),)
    assert (new.lr_factor, new.lr_windows) == (0.5, ((31, 400, 0.5),))
    assert (new.plan.replicas, new.plan.stages) == (4, 1)


def test_a_person_who_restores_an_abandoned_checkpoint_goes_back_to_its_branch():
    ring = Ring(running(requests=(request("restore", 1, checkpoint="alpha-g1-s30"),)))
    ring.settle()
    ring.ready()
    ring.settle()
    ring.tell(requests=(request("restore", 2, checkpoint="alpha-g1-s50"),))
    begun = ring.settle()[-1]
    assert ring.snapshot.attempt.parent_generation == 1
    assert {each.id for each in begun.checkpoints if each.abandoned is False} == {
        "alpha-g1-s40",
        "alpha-g1-s50",
    }


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ({"checkpoint": "alpha-g1-s7"}, "no checkpoint of this run"),
        ({"checkpoint": "alpha-g1-s30", "skip_steps": -1}, "skip_steps"),
        ({"checkpoint": "alpha-g1-s30", "lr_factor": 0}, "lr_factor"),
        ({"checkpoint": "alpha-g1-s30", "lr_factor": "much"}, "lr_factor"),
        ({"checkpoint": "alpha-g1-s30", "plan": {"replicas": 3}}, "replicas"),
        ({"checkpoint": "alpha-g1-s30", "plan": {"replica": 3}}, "did you mean"),
        ({"checkpoint": "alpha-g1-s30", "plan": 3}, "mapping"),
    ],
)
def test_a_restore_that_makes_no_sense_is_refused_with_a_sentence(args, word):
    decision = decide(running(requests=(request("restore", **args),)), now=NOW)
    assert answers(decision)[1].state == "refused"
    assert word in answers(decision)[1].because
    assert decision.attempt_end is None


def test_a_quarantined_checkpoint_is_not_restored():
    snapshot = running(
        requests=(request("restore", checkpoint="alpha-g1-s30"),),
        checkpoints=(at.checkpoint(30, "quarantined"),),
    )
    assert "quarantined" in answers(decide(snapshot, now=NOW))[1].because


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


def test_amend_checkpoints_and_goes_on_with_the_new_spec():
    spec = at.spec(train={"steps": 500, "global_batch": 64})
    ring = Ring(running(requests=(request("amend", spec=spec.model_dump(mode="json")),)))
    [asked] = ring.settle()
    assert [each.kind for each in asked.orders] == ["stop"]
    assert ring.snapshot.run.state == "running"
    ring.commit(55)
    finished(ring, ordered=True)
    ring.settle()
    assert ring.snapshot.run.spec == spec
    assert ring.snapshot.attempt.cause_kind == "amend"
    assert ring.snapshot.attempt.resumed_from_step == 55


def test_amend_of_what_earlier_steps_were_made_with_is_refused():
    spec = at.spec(train={"steps": 500, "global_batch": 64, "seed": 1})
    asked = request("amend", spec=spec.model_dump(mode="json"))
    decision = decide(running(requests=(asked,)), now=NOW)
    assert "train.seed cannot be amended" in answers(decision)[1].because


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"micro_batch": 4}, "parallel.micro_batch 4 would change the bits"),
        ({"micro_batch": 8, "zero": 1}, "needs zero 0"),
    ],
)
def test_promised_bits_are_kept_whoever_changes_the_plan(changed, word):
    train = {"steps": 500, "global_batch": 64, "determinism": "layout"}
    before = at.spec(train=train, parallel={"micro_batch": 8})
    told = before.model_dump(mode="json")
    told["parallel"] |= changed
    for asked in (
        request("amend", spec=told),
        request("restore", checkpoint="alpha-g1-s30", plan=changed),
    ):
        snapshot = running(requests=(asked,))
        snapshot = change(snapshot, spec=before)
        refused = answers(decide(snapshot, now=NOW))[1]
        assert refused.state == "refused"
        assert word in refused.because


def test_amend_to_fewer_steps_than_were_done_is_refused_with_both_numbers():
    spec = at.spec(train={"steps": 10, "global_batch": 64})
    asked = request("amend", spec=spec.model_dump(mode="json"))
    snapshot = running(requests=(asked,))
    answer = answers(decide(snapshot, now=NOW))[1]
    assert answer.state == "refused"
    assert "train.steps is 10" in answer.because
    assert f"step {newest_step(snapshot)}" in answer.because


def test_amend_of_a_paused_run_waits_for_its_resume():
    spec = at.spec(recovery={"max_restarts": 9})
    asked = request("amend", spec=spec.model_dump(mode="json"))
    decision = decide(resting("paused", requests=(asked,)), now=NOW)
    assert decision.spec == spec
    assert decision.state is None
    assert answers(decision)[1].state == "applied"


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
