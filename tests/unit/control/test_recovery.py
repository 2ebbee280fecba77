"""Ranks that finish, fall or fall silent, and what follows. Named after the failures."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.decide import decide
from control.liveness import exits
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, exited, ranks, running


def decided(snapshot, now=NOW):
    return decide(snapshot, now=now)


def all_exited(**changes):
    found = ranks()
    for number in range(4):
        found = exited(found, number, **changes)
    return found


def test_rank_killed_is_replaced_from_newest_checkpoint():
    ring = Ring(running())
    ring.settle()
    ring.kill(3)
    ended, begun = ring.settle()
    assert ended.state == "recovering"
    assert ended.attempt_end.because == "rank 3 killed by signal 9"
    assert ended.next_look_at == NOW
    new = begun.new_attempt
    assert (new.generation, new.cause_kind) == (2, "restart")
    assert new.cause == "rank 3 killed by signal 9"
    assert (new.resumed_from_checkpoint, new.resumed_from_step) == ("alpha-g1-s50", 50)
    assert new.parent_generation == 1
    assert new.own_skip == ()
    assert new.lr_factor is None
    assert sorted(each.slot for each in new.placements) == [0, 1, 2, 3]


def test_the_first_own_failure_beats_a_lost_peer_that_was_reported_earlier():
    found = exited(ranks(), 0, exit_code=75, ago_s=1.0)
    found = exited(found, 2, exit_code=70, ago_s=0.5)
    decision = decided(running(ranks=found))
    assert decision.attempt_end.because == "rank 2 exited with 70 (an error in the program)"


def test_a_lost_peer_alone_is_waited_on_for_the_cause_and_then_believed():
    found = exited(ranks(), 2, exit_code=75, ago_s=0.5)
    assert decided(running(ranks=found)).attempt_end is None
    later = NOW + timedelta(seconds=2)
    assert decided(running(ranks=found), later).attempt_end.because == (
        "rank 2 exited with 75 (lost a peer or a store)"
    )


def test_a_rank_that_left_with_0_is_the_cause_of_what_its_peers_lost():
    found = exited(ranks(), 1, exit_code=0, ago_s=1.0)
    for number in (0, 2, 3):
        found = exited(found, number, exit_code=75, ago_s=0.5)
    assert decided(running(ranks=found)).attempt_end is None, "its last word may still come"
    decision = decided(running(ranks=found), NOW + timedelta(seconds=2))
    assert decision.attempt_end.because == (
        "rank 1 exited with 0 before its last step, as if it had finished"
    )


def test_a_kill_for_lack_of_memory_is_told_with_its_evidence():
    told = "out of memory: oom_kill rose from 1 to 2"
    found = exited(ranks(), 2, signal=9, failure={"because": told, "out_of_memory": True})
    decision = decided(running(ranks=found))
    assert decision.attempt_end.because == "rank 2 killed by signal 9"
    assert any(f"rank 2 killed by signal 9: {told}" in event.because for event in decision.events)
    failure = exits.first_failure(running(ranks=found), now=NOW)
    assert failure.is_out_of_memory
    failure = exits.first_failure(running(ranks=exited(ranks(), 2, exit_code=71)), now=NOW)
    assert failure.is_out_of_memory
    assert failure.cause == "rank 2 exited with 71 (out of memory)"


def test_all_ranks_killed_at_once_cost_one_restart():
    ring = Ring(running())
    ring.tell(ranks=all_exited(signal=9))
    ring.settle()
    assert [each.cause_kind for each in ring.snapshot.attempts] == ["start", "restart"]


def test_an_agent_started_anew_ends_its_ranks():
    snapshot = running()
    snapshot = change(snapshot, nodes=(replace(snapshot.nodes[0], boot="boot-2"),))
    decision = decided(snapshot)
    assert decision.state == "recovering"
    assert "agent of node oak was started anew" in decision.attempt_end.because


def test_ranks_not_yet_started_survive_a_new_life_of_their_agent():
    snapshot = running(
        state="starting",
        attempts=(at.attempt(ready_at=None, first_step=None, last_step=None),),
        ranks=ranks(state="assigned", boot=None),
    )
    snapshot = change(snapshot, nodes=(replace(snapshot.nodes[0], boot="boot-2"),))
    assert decided(snapshot).attempt_end is None


def test_bad_spec_is_not_tried_again():
    decision = decided(running(ranks=exited(ranks(), 1, exit_code=78)))
    assert (decision.state, decision.code) == ("failed", "bad_spec")


def corrupt_restore(**changes):
    failure = {"because": "rank-2.safetensors: expected sha256:aa, seen sha256:bb"}
    beginning = at.attempt(
        2,
        parent_generation=1,
        resumed_from_step=50,
        resumed_from_checkpoint="alpha-g1-s50",
        cause_kind="restart",
        ready_at=None,
        first_step=None,
        last_step=None,
    )
    return running(
        state="starting",
        generation=2,
        attempts=(at.attempt(last_committed_step=50, ended_at=NOW), beginning),
        ranks=exited(ranks(state="started"), 2, exit_code=66, failure=failure),
        **changes,
    )


def test_corrupt_checkpoint_falls_back_without_costing_budget():
    ring = Ring(corrupt_restore(spec=at.spec(recovery={"max_restarts": 1})))
    ended, begun = ring.settle()
    [change_] = [each for each in ended.checkpoints if each.state == "quarantined"]
    assert change_.id == "alpha-g1-s50"
    for word in ("rank-2.safetensors", "sha256:aa", "sha256:bb"):
        assert word in change_.because
    new = begun.new_attempt
    assert new.cause_kind == "fallback"
    assert new.resumed_from_checkpoint == "alpha-g1-s40"
    assert "alpha-g1-s50 could not be restored" in new.cause
    assert "alpha-g1-s50" not in {each.id for each in begun.checkpoints}, "it keeps its reason"


def test_when_every_checkpoint_is_corrupt_the_run_begins_again():
    ring = Ring(corrupt_restore(checkpoints=(at.checkpoint(50, "committed"),)))
    ring.settle()
    new = ring.snapshot.attempt
    assert (new.resumed_from_step, new.resumed_from_checkpoint) == (0, None)
    assert new.parent_generation is None


def test_a_restart_without_progress_three_times_ends_in_budget_exhausted():
    ring = Ring(running())
    for _ in range(3):
        ring.kill()
        ring.settle()
        ring.advance(60)
        ring.settle()
        ring.ready()
        ring.settle()
        assert ring.snapshot.run.state == "running"
    ring.kill()
    ring.settle()
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert "no_progress_limit" in run.because
    assert "rank 3 killed by signal 9" in run.because


def test_a_w19_quick_deaths_do_not_slip_by_the_limit():
    limits = {"max_restarts": 3, "no_progress_limit": 100}
    ring = Ring(running(spec=at.spec(recovery=limits)))
    for restart in range(1, 4):
        ring.kill()
        ring.settle()
        ring.advance(60)
        ring.settle()
        ring.ready()
        ring.settle()
        ring.advance(2)
        assert (ring.snapshot.run.state, ring.snapshot.run.generation) == ("running", restart + 1)
    ring.kill()
    ring.settle()
    assert (ring.snapshot.run.state, ring.snapshot.run.code) == ("failed", "budget_exhausted")
    counted = [each for each in ring.snapshot.attempts if each.cause_kind == "restart"]
    assert len(counted) == 3, "counted from the attempts, which are rows"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_w21_rank_0_is_replaced_like_any_other(rank: int):
    ring = Ring(running())
    ring.settle()
    ring.kill(rank)
    ended, begun = ring.settle()
    assert (ended.state, ended.code) == ("recovering", None)
    assert begun.new_attempt.cause == f"rank {rank} killed by signal 9"
    assert begun.new_attempt.resumed_from_step == 50
    assert sorted(each.rank for each in begun.new_attempt.placements) == [0, 1, 2, 3]


def test_restarts_that_commit_are_refunded():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 2})))
    step = 50
    for _ in range(6):
        ring.kill()
        ring.settle()
        ring.ready()
        step += 10
        ring.train(step)
        ring.commit(step)
        ring.settle()
        assert ring.snapshot.run.state == "running"


def test_max_restarts_of_zero_forbids_the_first():
    snapshot = running(spec=at.spec(recovery={"max_restarts": 0}))
    decision = decided(change(snapshot, ranks=exited(ranks(), 3, signal=9)))
    assert (decision.state, decision.code) == ("failed", "budget_exhausted")
    assert "max_restarts is 0" in decision.because


def test_restarts_older_than_a_day_do_not_count():
    old = [
        at.attempt(
            number,
            cause_kind="restart",
            started_at=NOW - timedelta(hours=25),
            last_committed_step=None,
            ended_at=NOW,
        )
        for number in range(2, 7)
    ]
    newest = at.attempt(7, cause_kind="restart", last_committed_step=60, resumed_from_step=50)
    snapshot = running(
        generation=7, attempts=(at.attempt(), *old, newest), ranks=exited(ranks(), 3, signal=9)
    )
    assert decided(snapshot).state == "recovering"


def test_a_person_who_resumes_gets_a_fresh_budget():
    spent = [at.attempt(number, cause_kind="restart", ended_at=NOW) for number in (2, 3, 4)]
    resumed = at.attempt(5, cause_kind="resume")
    snapshot = running(
        generation=5, attempts=(at.attempt(), *spent, resumed), ranks=exited(ranks(), 3, signal=9)
    )
    assert decided(snapshot).state == "recovering"


def test_a_checkpoint_is_begun_from_three_times_and_then_the_one_before():
    tried = [
        at.attempt(
            number,
            parent_generation=1,
            cause_kind="restart",
            resumed_from_step=50,
            resumed_from_checkpoint="alpha-g1-s50",
            ended_at=NOW,
        )
        for number in (2, 3, 4)
    ]
    snapshot = running(
        state="recovering",
        generation=4,
        attempts=(at.attempt(ended_at=NOW), *tried),
        nodes=(at.node(),),
    )
    assert decided(snapshot).new_attempt.resumed_from_checkpoint == "alpha-g1-s40"


def test_a_lost_node_makes_the_run_unreachable_and_never_restarts_it():
    silent = at.node(silent_s=11)
    decision = decided(running(nodes=(silent,)))
    assert decision.state == "unreachable"
    assert decision.attempt_end is None
    hours_later = decided(running(state="unreachable", nodes=(silent,)), NOW + timedelta(hours=5))
    assert hours_later.attempt_end is None


def test_contact_restored_is_running_again():
    assert decided(running(state="unreachable")).state == "running"


def test_contact_restored_before_the_ranks_met_is_starting():
    snapshot = running(
        state="unreachable",
        attempts=(at.attempt(ready_at=None, first_step=None, last_step=None),),
        ranks=ranks(state="started"),
    )
    assert decided(snapshot).state == "starting"


def test_unreachable_is_restarted_after_the_time_its_spec_names():
    snapshot = running(
        state="unreachable",
        spec=at.spec(recovery={"unreachable_after_s": 30}),
        nodes=(at.node(silent_s=39),),
    )
    assert decided(snapshot).attempt_end is None
    decision = decided(snapshot, NOW + timedelta(seconds=1))
    assert decision.state == "recovering"
    assert "node oak has been out of contact for 40 s" in decision.attempt_end.because


def test_control_was_down_no_restart():
    """Control comes back after 30 s; for the length of a lease nodes that have not called yet are
    believed.
    """
    back = replace(running(nodes=(at.node(silent_s=30),)), control_up_since=NOW)
    for seconds in (0, 3, 9):
        decision = decided(back, NOW + timedelta(seconds=seconds))
        assert decision.state is None
        assert decision.attempt_end is None
        assert decision.orders == ()


def test_a_broken_collective_of_peers_is_the_second_witness_of_a_lost_node():
    found = at.with_rank(ranks(), 3, node="elm")
    found = exited(found, 2, exit_code=75, ago_s=5)
    snapshot = running(ranks=found, nodes=(at.node(), at.node("elm", silent_s=20)))
    assert decided(snapshot).state == "recovering"


def test_the_last_step_done_is_success_with_the_digest_of_the_weights():
    found = all_exited(exit_code=0, finished={"step": 400, "ordered": False})
    found = at.with_rank(found, 1, finished={"step": 400, "ordered": False, "weights_sha256": "ab"})
    decision = decided(running(ranks=found, desired="paused", state="pausing"))
    assert (decision.state, decision.weights_sha256) == ("succeeded", "ab")
    assert decision.desired == "running", "it came to its end before it could pause"
    assert decision.attempt_end.state == "succeeded"


def test_the_last_words_of_ranks_are_waited_for():
    found = all_exited(exit_code=0)
    found = at.with_rank(found, 0, finished={"step": 400, "ordered": False})
    assert decided(running(ranks=found)).state is None
    assert decided(running(ranks=found), NOW + timedelta(seconds=5)).state == "succeeded"


def test_ranks_that_exit_without_a_word_have_failed():
    snapshot = running(ranks=all_exited(exit_code=0))
    assert decided(snapshot).state is None
    decision = decided(snapshot, NOW + timedelta(seconds=5))
    assert decision.state == "recovering"
    assert "without telling" in decision.attempt_end.because


def test_ranks_that_have_met_make_the_run_running():
    snapshot = running(state="starting", attempts=(at.attempt(first_step=None, last_step=None),))
    assert decided(snapshot).state == "running"


def test_a_rank_killed_while_pausing_leaves_the_run_paused():
    pause = replace(at.request("pause", state="accepted"), generation=1)
    snapshot = running(
        state="pausing", desired="paused", requests=(pause,), ranks=exited(ranks(), 3, signal=9)
    )
    decision = decided(snapshot)
    assert decision.state == "paused"
    [answered] = decision.requests
    assert answered.state == "applied"
    assert "rank 3 killed by signal 9" in answered.because


@pytest.mark.parametrize("silent_s", [0, 20])
def test_deciding_again_after_the_end_changes_nothing(silent_s):
    snapshot = running(
        state="succeeded",
        attempts=(at.attempt(ended_at=NOW),),
        nodes=(at.node(silent_s=silent_s),),
        checkpoints=(at.checkpoint(400),),
        windows={},
    )
    assert not decided(snapshot).changes_anything


def test_a_rank_that_its_agent_ended_is_no_cause():
    found = exited(ranks(), 0, signal=9, stopped=True, ago_s=1.0)
    found = exited(found, 2, exit_code=70, ago_s=0.5)
    decision = decided(running(ranks=found))
    assert decision.attempt_end.because.startswith("rank 2 exited with 70")
