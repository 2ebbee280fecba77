"""A rank that tells nothing while the others go on is named; one that is only late is not."""

from __future__ import annotations

from dataclasses import replace

from control.decide import decide
from control.liveness.silence import RULE
from control.snapshot import RunSnapshot
from tests.fakes import snapshots as at
from tests.fakes.ring import applied


def told(*last_steps: int | None, step_time_s: float = 1.0, **changes: object) -> RunSnapshot:
    """A run whose ranks have told up to these steps."""
    found = at.ranks(len(last_steps))
    for number, last in enumerate(last_steps):
        found = at.with_rank(found, number, last_step=last)
    windows = {
        **at.windows(50),
        "step_time_s": at.samples((step, step_time_s) for step in range(1, 51)),
    }
    return at.running(**{"ranks": found, "windows": windows, **changes})


def alerts(snapshot: RunSnapshot) -> list[tuple[str, str, int | None]]:
    decided = decide(snapshot, now=at.NOW)
    return [
        (each.scope, each.state, each.first_bad_step)
        for each in decided.alerts
        if each.rule == RULE
    ]


def test_x_inge13_a_rank_that_has_told_nothing_is_named_once():
    quiet = told(120, 120, 120, None)
    decision = decide(quiet, now=at.NOW)
    [alert] = [each for each in decision.alerts if each.rule == RULE]
    assert (alert.scope, alert.state, alert.first_bad_step) == ("rank 3", "firing", 1)
    [event] = [each for each in decision.events if each.kind == "alert_firing"]
    assert event.data["scope"] == "rank 3", "of two that fall silent at one step two are told"
    for words in ("Rank 3 on oak", "nothing beyond step 0", "at step 120"):
        assert words in event.because
    assert alerts(applied(quiet, decision, at.NOW)) == []


def test_it_is_over_when_the_rank_is_heard_again_or_its_attempt_has_ended():
    quiet = told(120, 120, 120, 60)
    shown = applied(quiet, decide(quiet, now=at.NOW), at.NOW)
    caught_up = at.with_rank(shown.ranks, 3, last_step=119)
    assert alerts(replace(shown, ranks=caught_up)) == [("rank 3", "resolved", 61)]
    next_one = replace(quiet.attempts[-1], generation=2)
    later = at.change(
        shown, attempts=(*quiet.attempts, next_one), generation=2, ranks=at.ranks(4, last_step=1)
    )
    assert alerts(later) == [("rank 3", "resolved", 61)]


def test_who_is_a_little_behind_or_fast_or_out_of_contact_is_not_silent():
    assert alerts(told(120, 120, 120, 71)) == []
    # A hundred steps are a second here: agents do not tell that often.
    assert alerts(told(200, 200, 200, 100, step_time_s=0.01)) == []
    away = at.node(silent_s=5.0, taken=frozenset(range(4)), held_here=frozenset(range(4)))
    assert alerts(told(120, 120, 120, None, nodes=(away,))) == []
    assert alerts(told(None, None, None, None)) == []
    assert alerts(told(120, 120, 120, None, state="held", desired="held")) == []
