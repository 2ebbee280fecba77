"""A rule that fires, heals and fires again is shown as one alert, and acts as ever."""

from __future__ import annotations

from control.rules.flapping import flaps, window
from control.rules.judgement import Firing
from control.snapshot import Silence
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, running
from trainmaster.rule import For, Rule

STEP = For(steps=1)


def fired(*steps: int) -> list[Firing]:
    """Firings of one step each."""
    return [Firing(step, step, step + 1) for step in steps]


def is_flapping(firings: list[Firing], last_step: int) -> bool:
    return flaps(firings, STEP, last_step=last_step, last_at=0.0)


def test_three_firings_within_the_window_flap_and_two_do_not():
    assert not is_flapping(fired(10, 20), 30)
    assert is_flapping(fired(10, 20, 30), 31)
    assert not is_flapping(fired(10, 20, 130), 131)


def test_it_is_over_after_a_clean_stretch_and_begins_anew_after_it():
    assert is_flapping(fired(10, 20, 30), 130)
    assert not is_flapping(fired(10, 20, 30), 131)
    assert is_flapping(fired(10, 20, 30, 120), 200), "one more prolongs it"
    assert not is_flapping(fired(10, 20, 30, 200), 201), "it begins anew"


def test_it_goes_on_while_the_rule_fires():
    assert is_flapping([*fired(10, 20, 30), Firing(40, 40)], 400)


def test_the_window_follows_what_the_rule_waits_for():
    assert window(For(steps=50)) == 500
    assert window(For(steps=3, within=20)) == 200
    minute = For(seconds=60)
    assert window(minute) == 600
    ends = [(0.0, 100.0), (200.0, 300.0), (400.0, 500.0)]
    firings = [Firing(1, 1, 1, fired_at=first, resolved_at=last) for first, last in ends]
    assert flaps(firings, minute, last_step=1, last_at=1099.0)
    assert not flaps(firings, minute, last_step=1, last_at=1100.0)


def not_finite(**changes: object) -> Rule:
    return Rule.model_validate(
        {"name": "r", "metric": "grad_norm", "when": {"condition": "non_finite"}, **changes}
    )


def trained(ring: Ring, *stretches: tuple[int, tuple[int, ...]]) -> list[str]:
    """Take a turn after each stretch; return the kinds of what was told of alerts."""
    told = []
    for last_step, bad in stretches:
        ring.train(last_step, bad=bad)
        told += [each for decision in ring.settle() for each in decision.events]
    return [each.kind for each in told if each.kind.startswith("alert_")]


UP_AND_DOWN = tuple((step, (step,) if step % 2 else ()) for step in range(61, 69))
"""Bad at 61, 63, 65 and 67, and healed after each."""


def test_the_alert_stays_firing_and_people_are_told_once():
    ring = Ring(running(rules=(not_finite(),)))
    told = trained(ring, (60, ()), *UP_AND_DOWN)
    once = ["alert_firing", "alert_resolved"]
    assert told == [*once, *once, "alert_firing", "alert_flapping"]
    [alert] = ring.snapshot.alerts
    assert (alert.state, alert.flapping, alert.first_bad_step) == ("firing", True, 67)
    assert trained(ring, (167, ())) == []
    assert trained(ring, (168, ())) == ["alert_resolved"]
    [alert] = ring.snapshot.alerts
    assert (alert.state, alert.flapping) == ("resolved", False)


def test_what_is_not_finite_is_acted_on_at_once_however_its_alert_flaps():
    acting = not_finite(
        severity="critical", mode="act", actions=[{"action": "skip"}, {"action": "rollback"}]
    )
    ring = Ring(running(rules=(acting,)))
    trained(ring, (60, ()), *UP_AND_DOWN)
    [rolled, *_] = [each for each in ring.decisions if each.attempt_end is not None]
    assert rolled.attempt_end.state == "rolled_back"
    assert [each.first_bad_step for each in rolled.alerts] == [63], "at its second firing"


def test_a_silenced_rule_flaps_quietly_and_one_that_is_removed_does_not_flap_on():
    ring = Ring(running(rules=(not_finite(),), silences=(Silence(1, "r", NOW),)))
    trained(ring, (60, ()), *UP_AND_DOWN)
    [event] = [e for each in ring.decisions for e in each.events if e.kind == "alert_flapping"]
    assert event.data["silenced"]
    ring.tell(rules=())
    ring.settle()
    [alert] = ring.snapshot.alerts
    assert (alert.state, alert.flapping) == ("resolved", False)
