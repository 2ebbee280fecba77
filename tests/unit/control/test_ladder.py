"""The ladder for numeric trouble, patience, probation against the trend before it, and rules that
ask.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from control.snapshot import Sample
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import running
from trainmaster.rule import Rule

NUMERIC = tuple(rule for rule in at.RULES if rule.name == "gradient not finite")
SPIKE = tuple(rule for rule in at.RULES if rule.name == "loss spike")


def with_losses(ring: Ring, losses: dict[int, float]) -> None:
    """Change the losses of some steps of the newest attempt."""
    found = dict(ring.snapshot.windows)
    found["loss"] = tuple(
        replace(each, value=losses.get(each.step, each.value)) for each in found["loss"]
    )
    ring.tell(windows=found)


def train(ring: Ring, last_step: int, losses: dict[int, float]) -> None:
    ring.train(last_step)
    with_losses(ring, losses)
    ring.settle()


def trained(rules, steps=120, **changes) -> Ring:
    saved = tuple(at.checkpoint(step) for step in range(10, steps + 1, 10))
    ring = Ring(running(rules=rules, checkpoints=saved, **changes))
    ring.train(steps)
    ring.settle()
    return ring


def test_the_ladder_is_skip_then_half_the_rate_then_one_earlier_then_a_person():
    ring = trained(NUMERIC)
    begun = []
    for _ in range(4):
        newest = ring.snapshot.attempt
        first = max(newest.resumed_from_step + 10, 121)
        ring.train(first + 2, bad=(first, first + 1, first + 2))
        ring.settle()
        if ring.snapshot.run.state == "failed":
            break
        begun.append(ring.snapshot.attempt)
        ring.ready()
        ring.settle()
    one, two, three = begun
    assert (one.resumed_from_checkpoint, one.own_skip, one.lr_factor) == (
        "alpha-g1-s120",
        ((121, 123),),
        None,
    )
    assert (two.resumed_from_checkpoint, two.lr_factor) == ("alpha-g1-s120", 0.5)
    assert two.own_skip
    assert (three.resumed_from_checkpoint, three.lr_factor) == ("alpha-g1-s110", 0.5)
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert "person" in run.because


def test_what_was_passed_over_and_the_budget_left_are_told():
    ring = trained(NUMERIC)
    ring.commit(121)
    ring.train(124, bad=(122, 123, 124))
    ordered, *_ = ring.settle()
    assert "Rollbacks left within 24 h: 2" in ordered.because
    assert "alpha-g1-s121 is committed, not trusted" in ordered.because
    [incident] = ring.snapshot.incidents
    [taken] = incident.actions
    assert taken["rejected"][0]["checkpoint"] == "alpha-g1-s121"


def test_a_spike_that_heals_within_its_patience_is_left_alone():
    ring = trained(SPIKE)
    train(ring, 135, dict.fromkeys(range(121, 136), 6.0))
    assert ring.snapshot.run.generation == 1
    [alert] = [each for each in ring.snapshot.alerts if each.rule == "loss spike"]
    assert (alert.state, alert.first_bad_step) == ("firing", 121)
    train(ring, 170, {})
    assert ring.snapshot.run.generation == 1
    assert ring.snapshot.num_incidents == 0


def test_a_spike_that_stays_is_rolled_back_when_its_patience_is_over():
    ring = trained(SPIKE)
    for last in range(125, 160, 5):
        train(ring, last, dict.fromkeys(range(121, last + 1), 6.0))
        if ring.snapshot.run.generation > 1:
            break
    newest = ring.snapshot.attempt
    assert newest.cause_kind == "rollback"
    assert newest.resumed_from_checkpoint == "alpha-g1-s120"
    # Fired at the third bad step, and waited for 30 more.
    assert newest.own_skip == ((121, 155),)


def test_an_isolated_spike_of_the_norm_with_normal_loss_only_warns():
    ring = trained(at.RULES)
    ring.train(125)
    found = dict(ring.snapshot.windows)
    found["grad_norm"] = tuple(
        replace(each, value=11140.0) if each.step == 122 else each for each in found["grad_norm"]
    )
    ring.tell(windows=found)
    ring.settle()
    fired = {
        each.data["rule"]
        for decision in ring.decisions
        for each in decision.events
        if each.kind == "alert_firing"
    }
    assert fired == {"gradient norm leads"}
    assert (ring.snapshot.run.generation, ring.snapshot.num_incidents) == (1, 0)


def rolled_back() -> Ring:
    ring = trained(NUMERIC)
    ring.train(123, bad=(121, 122, 123))
    ring.settle()
    ring.ready()
    ring.settle()
    return ring


def test_probation_is_measured_against_the_trend_before_the_incident():
    ring = rolled_back()
    [incident] = ring.snapshot.incidents
    assert incident.verification["measured_against"] == "the pre-incident trend"
    low, high = incident.verification["loss_band"]
    assert low < 3.0 < high
    assert incident.verification["grad_norm_below"] == 2.0
    train(ring, 150, dict.fromkeys(range(121, 151), 4.0))
    assert ring.snapshot.incidents, "finite is not healthy while the loss is above"
    train(ring, 170, dict.fromkeys(range(121, 151), 4.0))
    [closed] = ring.decisions[-1].incidents or ring.decisions[-2].incidents
    assert closed.closed_as == "resolved"
    assert closed.verification["healthy_steps"] >= 20
    assert closed.actions[-1]["helped"] is True


def test_what_has_not_healed_after_a_hundred_steps_did_not_help_and_the_next_rung_follows():
    ring = rolled_back()
    # Two steps of three are above the band: no rule that may act fires, and it is not well.
    for last in range(140, 240, 10):
        train(ring, last, {step: 3.6 for step in range(121, last + 1) if step % 8})
        if ring.snapshot.run.generation > 2:
            break
    newest = ring.snapshot.attempt
    assert (newest.generation, newest.cause_kind, newest.lr_factor) == (3, "rollback", 0.5)
    [incident] = ring.snapshot.incidents
    assert [each.get("helped") for each in incident.actions] == [False, None]
    assert "were healthy" in incident.actions[0]["outcome"]


def test_trouble_with_speed_is_measured_by_step_time():
    rule = Rule.model_validate(
        {
            "name": "slow",
            "metric": "step_time_s",
            "when": {"condition": "above", "value": 1.0},
            "mode": "act",
            "actions": [{"action": "checkpoint"}],
        }
    )
    ring = Ring(running(rules=(rule,)))
    times = dict.fromkeys(range(1, 51), 0.5) | {51: 2.0}
    ring.train(51)
    found = dict(ring.snapshot.windows)
    found["step_time_s"] = at.samples(times)
    ring.tell(windows=found)
    ring.settle()
    [incident] = ring.snapshot.incidents
    assert incident.verification["measured_against"] == "the pre-incident level"
    assert incident.verification["step_time_at_most_s"] == pytest.approx(0.55)


def test_a_rule_that_asks_proposes_and_does_nothing():
    asking = NUMERIC[0].model_copy(update={"mode": "ask"})
    ring = trained((asking,))
    ring.train(123, bad=(121, 122, 123))
    [decided, *_] = ring.settle()
    assert [each.kind for each in decided.events if each.kind == "incident_waiting"]
    [incident] = ring.snapshot.incidents
    assert (incident.state, incident.actions) == ("waiting", ())
    assert incident.proposed["action"]["action"] == "rollback"
    assert incident.proposed["then"] == "dismiss"
    assert ring.snapshot.run.generation == 1
    ring.train(130)
    ring.settle()
    assert len(ring.snapshot.incidents) == 1, "it does not ask twice"


def test_an_edited_bound_takes_no_second_action_on_the_same_trouble():
    ring = rolled_back()
    ring.tell(rules=(NUMERIC[0].model_copy(update={"description": "edited", "max_actions": 5}),))
    ring.settle()
    assert ring.snapshot.run.generation == 2
    ring.tell(rules=())
    ring.train(150)
    ring.settle()
    assert ring.snapshot.incidents == (), "the rule is gone, and its incident ends all the same"
    assert all(each.state in {"resolved", "inactive"} for each in ring.snapshot.alerts)


def test_of_two_rules_at_once_the_critical_one_acts_and_it_alone():
    stop = Rule.model_validate(
        {
            "name": "a rule that stops",
            "metric": "applied",
            "when": {"condition": "below", "value": 0.5},
            "mode": "act",
            "actions": [{"action": "stop"}],
        }
    )
    ring = trained((stop, *NUMERIC))
    ring.train(123, bad=(121, 122, 123))
    ring.settle()
    [incident] = ring.snapshot.incidents
    assert [each["action"] for each in incident.actions] == ["rollback"]
    assert ring.snapshot.run.desired == "running"


def test_nan_at_once_after_a_restore_is_the_checkpoints_fault():
    ring = rolled_back()
    assert ring.snapshot.attempt.resumed_from_checkpoint == "alpha-g1-s120"
    ring.train(123, bad=(121, 122, 123))
    ring.settle()
    states = {each.id: each.state for each in ring.snapshot.checkpoints}
    assert states["alpha-g1-s120"] == "quarantined"
    assert ring.snapshot.attempt.resumed_from_checkpoint == "alpha-g1-s110"


def test_two_nan_while_a_loss_scale_settles_are_no_reason_to_go_back():
    ring = Ring(running(rules=at.RULES, checkpoints=(), windows=at.windows(2, bad=(1, 2))))
    ring.train(40)
    ring.settle()
    assert ring.snapshot.run.generation == 1
    assert ring.snapshot.num_incidents == 0


def test_a_mean_that_one_rank_spoils_is_seen_as_what_it_is():
    """The run-level loss is the mean over ranks; a NaN of one of them is the mean's."""
    hard = tuple(Sample(1, step, at.NOW, 3.0 if step < 60 else math.nan) for step in range(1, 63))
    lost = [rule for rule in at.RULES if rule.name == "loss not finite"]
    assert at.evaluate(lost[0], hard).state == "firing"
