"""Which checkpoint is used, which is not and why, and when one is trusted: design sentence by
sentence.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.checkpoints.choice import choose_before, choose_newest
from control.decide import decide
from control.snapshot import Incident
from tests.fakes import snapshots as at
from tests.fakes.snapshots import NOW, checkpoint, running
from trainmaster.rule import Rule

S40, S50 = "alpha-g1-s40", "alpha-g1-s50"


def tried(times: int, step: int = 50):
    """An attempt, then as many restarts from one checkpoint without a further commit."""
    first = at.attempt(ended_at=NOW, last_step=55)
    again = [
        at.attempt(
            generation,
            parent_generation=1,
            cause_kind="restart",
            resumed_from_step=step,
            resumed_from_checkpoint=f"alpha-g1-s{step}",
            first_step=step + 1,
            last_step=step + 5,
            ended_at=NOW,
        )
        for generation in range(2, 2 + times)
    ]
    return (first, *again)


@pytest.mark.parametrize(
    ("newest", "attempts", "why"),
    [
        ({"state": "quarantined"}, tried(0), "is quarantined"),
        ({"state": "writing"}, tried(0), "is not committed yet"),
        ({"problem": "state.json: missing"}, tried(0), "did not prove right when it was read"),
        ({"abandoned": True}, tried(0), "lies on a branch that a later generation left"),
        ({}, tried(1, step=40), "lies on a branch that a later generation left"),
        ({}, tried(3), "has been tried 3 times"),
        ({"state": "trusted"}, tried(3), "has been tried 3 times"),
    ],
)
def test_after_an_exit_without_numeric_evidence_the_newest_is_used_unless(newest, attempts, why):
    found = (
        checkpoint(30),
        checkpoint(40, "committed"),
        replace(checkpoint(50, "committed"), **newest),
    )
    choice = choose_newest(running(checkpoints=found, attempts=attempts))
    assert (choice.checkpoint.id, choice.step) == (S40, 40)
    assert [each.to_json() for each in choice.rejected] == [
        {"checkpoint": S50, "step": 50, "why": why}
    ]
    assert choice.because == (
        f"Goes on from {S40} (step 40), the newest good checkpoint. Passed over: {S50} {why}."
    )


def test_nothing_is_explained_away_where_the_newest_is_good():
    choice = choose_newest(running(checkpoints=(checkpoint(40), checkpoint(50, "committed"))))
    assert choice.checkpoint.id == S50, "trust is not asked for without numeric evidence"
    assert choice.because == f"Goes on from {S50} (step 50), the newest good checkpoint."
    assert choice.rejected == ()


def test_step_0_is_the_last_resort_and_the_reasons_are_told():
    none = choose_newest(running(checkpoints=()))
    assert (none.step, none.because) == (0, "Begins at step 0: there is no good checkpoint yet.")
    worn = choose_newest(running(checkpoints=(checkpoint(50),), attempts=tried(3)))
    assert worn.step == 0
    assert "each good checkpoint has been tried too often" in worn.because
    assert "has been tried 3 times" in worn.because


@pytest.mark.parametrize(
    ("checkpoints", "chosen", "rejected"),
    [
        (
            (checkpoint(30), checkpoint(40, "committed"), checkpoint(50)),
            30,
            {
                50: "was not taken before step 45, the first bad one",
                40: "is committed, not trusted",
            },
        ),
        (
            (
                checkpoint(20),
                replace(checkpoint(30), abandoned=True),
                checkpoint(40, "quarantined"),
            ),
            20,
            {40: "is quarantined", 30: "lies on a branch that a later generation left"},
        ),
        ((checkpoint(30, "committed"), checkpoint(40, "quarantined")), 30, {40: "is quarantined"}),
        ((checkpoint(44, "committed"),), 0, {44: "has no healthy step after it"}),
        ((checkpoint(45),), 0, {45: "was not taken before step 45, the first bad one"}),
        ((), 0, {}),
    ],
)
def test_after_numeric_trouble_the_newest_trusted_before_the_first_bad_sign(
    checkpoints, chosen, rejected
):
    snapshot = running(checkpoints=checkpoints, windows=at.windows(50, bad=(45, 46, 47)))
    choice = choose_before(snapshot, 45)
    assert choice.step == chosen
    assert {each.step: each.why for each in choice.rejected} == rejected
    for why in rejected.values():
        assert why in choice.because


def test_long_lists_of_alternatives_are_told_in_short_and_bounded_in_the_event():
    found = tuple(checkpoint(step, "quarantined") for step in range(1, 40))
    choice = choose_newest(running(checkpoints=found))
    assert len(choice.rejected) == 20
    assert choice.because.endswith("; and 36 more.")


def resumed(**changes):
    """Generation 2 went on from step 50 after a crash, and its first steps are not finite."""
    second = at.attempt(
        2,
        parent_generation=1,
        cause_kind="restart",
        resumed_from_step=50,
        resumed_from_checkpoint=S50,
        first_step=51,
        last_step=53,
    )
    given = {
        "generation": 2,
        "checkpoints": (checkpoint(40), checkpoint(50)),
        "attempts": (at.attempt(ended_at=NOW, last_step=52), second),
        "windows": at.windows(53, bad=(51, 52, 53)),
        **changes,
    }
    return running(**given)


def test_a_r13_a_checkpoint_whose_first_step_is_nan_is_bad_and_the_one_before_is_tried():
    decision = decide(resumed(), now=NOW)
    [sick] = [each for each in decision.checkpoints if each.state == "quarantined"]
    assert sick.id == S50
    assert (
        "step 51, the first after it was restored in generation 2, was not finite" in sick.because
    )
    [incident] = decision.incidents
    assert incident.actions[-1]["checkpoint"] == S40
    [rejected] = incident.actions[-1]["rejected"]
    assert (rejected["checkpoint"], rejected["why"]) == (
        S50,
        "was followed by no healthy step when it was restored",
    )
    assert choose_before(resumed(checkpoints=(checkpoint(50),)), 51).step == 0


def test_a_r13_trouble_after_a_healthy_step_says_nothing_of_the_checkpoint():
    later = resumed(windows=at.windows(55, bad=(52, 53, 54)))
    assert choose_before(later, 52).checkpoint.id == S50
    assert not any(each.state == "quarantined" for each in decide(later, now=NOW).checkpoints)


def test_the_event_of_an_attempt_carries_the_alternatives():
    ended = running(
        state="recovering",
        checkpoints=(checkpoint(40), checkpoint(50, "quarantined")),
        attempts=(at.attempt(ended_at=NOW, state="failed", because="rank 1 died"),),
        ranks=(),
        nodes=(at.node(),),
    )
    decision = decide(ended, now=NOW)
    [event] = [each for each in decision.events if each.kind == "run_starting"]
    assert event.data["checkpoint"] == S40
    assert event.data["rejected"] == [{"checkpoint": S50, "step": 50, "why": "is quarantined"}]
    assert f"{S50} is quarantined" in event.because
    assert event.data["made_of"] == {
        "code_sha256": "c",
        "data_sha256": None,
        "environment_sha256": None,
        "environment": {},
    }


def speed_rule() -> Rule:
    [first, *_] = [rule for rule in at.RULES if rule.metric == "loss"]
    return first.model_copy(update={"name": "slow", "metric": "step_time_s"})


NUMERIC = next(rule.name for rule in at.RULES if rule.metric == "grad_norm")


@pytest.mark.parametrize(
    ("rule", "first_bad_step", "trusted"),
    [
        ("slow", 41, False),
        ("slow", 60, False),
        ("slow", 61, True),
        ("slow", 40, True),
        (NUMERIC, 41, False),
        (NUMERIC, 60, False),
        (NUMERIC, 61, True),
        (NUMERIC, 12, False),
    ],
)
def test_not_promoted_while_an_incident_is_open_whose_first_bad_step_lies_in_its_window(
    rule, first_bad_step, trusted
):
    incident = Incident("alpha-i1", NOW, "waiting", rule, 0, first_bad_step, first_bad_step)
    snapshot = running(
        checkpoints=(checkpoint(40, "committed"),),
        windows=at.windows(60),
        attempts=(at.attempt(last_step=60),),
        incidents=(incident,),
        rules=(*at.RULES, speed_rule()),
    )
    decision = decide(snapshot, now=NOW)
    assert any(each.state == "trusted" for each in decision.checkpoints) is trusted


def test_at_the_end_of_a_run_read_back_alone_promotes_and_nothing_else_does():
    read = checkpoint(52, "committed")
    unread = replace(checkpoint(51, "committed"), verified_at=None)
    left = replace(checkpoint(50, "committed"), abandoned=True)
    snapshot = running(
        state="succeeded",
        attempts=(at.attempt(ended_at=NOW, last_step=52),),
        checkpoints=(left, unread, read),
        windows=at.windows(52),
    )
    decision = decide(snapshot, now=NOW)
    assert {each.id for each in decision.checkpoints if each.state == "trusted"} == {read.id}
