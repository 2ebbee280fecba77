"""Restores and changed specs: what they begin from, what differs, and what is refused."""

from __future__ import annotations

import pytest

from control.decide import decide
from control.lifecycle import ALLOWED_FROM
from control.lineage import newest_step
from tests.fakes import snapshots as at
from tests.fakes.asked import answers, finished, resting
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, request, running


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
