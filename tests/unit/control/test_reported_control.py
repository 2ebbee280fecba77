"""Cases that others reported of control planes, told to ours."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from control.decide import decide
from control.snapshot import OrderStatus, Pulse
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, ranks, request, running, with_rank


def still(section: str, activity: str, seconds: float = 60.0) -> Pulse:
    return Pulse(section, activity, 51, seconds, seconds)


def test_a_c04_what_an_earlier_generation_reported_hides_no_hang():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 9})))
    told = with_rank(ranks(), 3, state="exited", exit_code=0, finished={"step": 50}, exited_at=NOW)
    ring.tell(ranks=with_rank(told, 1, state="exited", signal=9, exited_at=NOW))
    ring.settle()
    ring.ready()
    ring.settle()
    ring.train(60)
    newest = ring.snapshot.attempt.generation
    assert newest == 2
    taken = at.samples(dict.fromkeys(range(51, 61), 0.1), generation=newest)
    found = with_rank(ranks(pulse=still("step", "wait")), 3, pulse=still("step", "compute"))
    ring.tell(ranks=found, windows={**ring.snapshot.windows, "step_time_s": taken})
    [alert] = [each for each in ring.turn().alerts if each.rule == "hang"]
    assert alert.scope == "rank 3"


def test_a_c06_a_rank_that_saves_for_long_is_no_hang_and_its_timeout_no_divergence():
    taken = at.samples(dict.fromkeys(range(1, 51), 0.1))
    windows = {**at.windows(50), "step_time_s": taken}
    found = with_rank(
        ranks(pulse=still("step", "wait", 900)), 0, pulse=still("checkpoint", "other", 900)
    )
    ring = Ring(running(ranks=found, windows=windows))
    assert all(each.rule != "hang" for each in ring.turn().alerts)
    lost = {"because": "lost contact with another rank (Timed out waiting 600000ms)"}
    ring.tell(
        ranks=tuple(
            replace(each, state="exited", exit_code=75, exited_at=NOW, failure=lost)
            for each in ring.snapshot.ranks
        )
    )
    ring.advance(3)
    ring.settle()
    ring.advance(1)
    ring.settle()
    newest = ring.snapshot.attempt
    assert newest.cause_kind == "retry", "of the store or a peer, and no rollback"
    assert newest.resumed_from_step == 50
    assert newest.own_skip == ()


def test_a_c08_after_control_was_away_the_dead_run_recovers_and_the_live_one_is_left_alone():
    away = {"control_up_since": NOW - timedelta(seconds=2)}
    live = running(nodes=(at.node(silent_s=300),), **away)
    assert decide(live, now=NOW).attempt_end is None
    assert decide(live, now=NOW).state is None
    dead = running(ranks=ranks(), **away)
    dead = change(dead, nodes=(replace(dead.nodes[0], boot="boot-2"),))
    decision = decide(dead, now=NOW)
    assert decision.state == "recovering"
    assert "started anew" in decision.attempt_end.because


def with_bad_steps() -> Ring:
    ring = Ring(running())
    ring.train(55, bad=[52, 53, 54, 55])
    return ring


def test_x_comm03_a_restore_in_the_turn_of_a_rollback_goes_first_and_is_the_only_load():
    ring = with_bad_steps()
    ring.tell(requests=(request("restore", checkpoint="alpha-g1-s20"),))
    ring.settle()
    begun = [each.new_attempt for each in ring.decisions if each.new_attempt is not None]
    assert [(each.cause_kind, each.resumed_from_step) for each in begun] == [("restore", 20)]


def test_x_comm03_a_restore_after_a_rollback_was_ordered_is_refused_with_a_sentence():
    ring = with_bad_steps()
    ordered = ring.turn()
    assert ordered.attempt_end is not None
    ring.tell(requests=(request("restore", checkpoint="alpha-g1-s20"),))
    ring.settle()
    begun = [each.new_attempt for each in ring.decisions if each.new_attempt is not None]
    assert [each.cause_kind for each in begun] == ["rollback"]
    [refused] = [each for one in ring.decisions for each in one.requests]
    assert refused.state == "refused"
    assert "the run is recovering" in refused.because


def test_x_comm05_pause_and_resume_in_one_breath_end_in_a_run_that_goes_on_once():
    ring = Ring(running(requests=(request("pause", 1), request("resume", 2))))
    ring.settle()
    answers = {each.id: each for decision in ring.decisions for each in decision.requests}
    assert answers[2].state == "refused"
    assert "pausing" in answers[2].because
    assert ring.snapshot.run.state == "pausing"
    assert [each.kind for each in ring.snapshot.orders] == ["stop"]


def test_x_comm07_an_acknowledgement_of_an_order_that_nobody_gave_changes_nothing():
    ring = Ring(running())
    ring.settle()
    before = ring.snapshot.run
    strange = OrderStatus(99, "hold", {}, "refused", because="old", request=12345)
    ring.tell(orders=(strange,))
    ring.settle()
    assert ring.snapshot.run.state == before.state
    assert ring.snapshot.attempts[-1].ended_at is None
