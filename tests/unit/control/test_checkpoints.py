"""Which checkpoint is chosen, trusted, kept and let go."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.checkpoints.choice import choose_before, choose_newest
from control.checkpoints.judging import interval
from control.checkpoints.restoring import restore_preview
from control.checkpoints.retention import kept, verdicts
from control.decide import decide
from control.lineage import inherited_skip, lineage_of, surviving
from control.snapshot import Incident
from control.turn import Turn
from tests.fakes import snapshots as at
from tests.fakes.snapshots import NOW, change, checkpoint, running
from trainmaster.batches import batch_of_step


def branched():
    """Generation 1 reached step 50; generation 2 began from its step 30 and has reached 35."""
    second = at.attempt(
        2,
        parent_generation=1,
        cause_kind="rollback",
        resumed_from_step=30,
        resumed_from_checkpoint="alpha-g1-s30",
        last_step=35,
        skip=((31, 33),),
        own_skip=((31, 33),),
    )
    return running(generation=2, attempts=(at.attempt(ended_at=NOW), second))


def test_the_lineage_is_each_generation_up_to_where_the_next_began():
    snapshot = branched()
    assert surviving(snapshot)[1] == 30
    assert lineage_of(snapshot.attempts, 1).keys() == {1}


def test_a_newer_checkpoint_of_another_branch_is_not_chosen():
    assert choose_newest(branched()).checkpoint.id == "alpha-g1-s30"


def test_what_a_later_generation_left_behind_is_marked_abandoned():
    decision = decide(branched(), now=NOW)
    assert {each.id for each in decision.checkpoints if each.abandoned} == {
        "alpha-g1-s40",
        "alpha-g1-s50",
    }


@pytest.mark.parametrize(
    "changes",
    [{"state": "quarantined"}, {"abandoned": True}, {"problem": "x"}, {"state": "writing"}],
)
def test_what_is_not_good_is_never_chosen(changes):
    newest = replace(checkpoint(50, "committed"), **changes)
    snapshot = running(checkpoints=(checkpoint(40, "committed"), newest))
    assert choose_newest(snapshot).step == 40


def test_after_numeric_trouble_the_newest_trusted_before_the_first_bad_step_is_chosen():
    snapshot = running()
    assert choose_before(snapshot, 61).step == 30
    assert choose_before(snapshot, 30).step == 20
    assert choose_before(snapshot, 10).step == 0


def test_a_checkpoint_that_no_healthy_step_followed_is_not_chosen_after_trouble():
    snapshot = running(
        checkpoints=(checkpoint(50, "committed"),), windows=at.windows(51, bad=(51,))
    )
    assert choose_before(snapshot, 51).checkpoint is None


@pytest.mark.parametrize(("steps", "every"), [(400, 40), (40, 10), (5, 5), (100_000, 1000), (1, 1)])
def test_auto_is_a_tenth_of_the_run_within_bounds(steps, every):
    spec = at.spec(train={"steps": steps, "global_batch": 64}, checkpoint={"every_steps": "auto"})
    assert interval(spec).every_steps == every


def trusted_by(decision):
    return {each.id for each in decision.checkpoints if each.state == "trusted"}


def test_trusted_after_healthy_steps_and_read_back():
    assert trusted_by(decide(running(windows=at.windows(50)), now=NOW)) == set()
    newest = at.attempt(last_step=60)
    snapshot = running(windows=at.windows(60), attempts=(newest,))
    assert trusted_by(decide(snapshot, now=NOW)) == {"alpha-g1-s40"}
    unread = tuple(replace(each, verified_at=None) for each in snapshot.checkpoints)
    assert trusted_by(decide(change(snapshot, checkpoints=unread), now=NOW)) == set()


def test_not_trusted_while_a_bad_step_lies_in_its_window():
    newest = at.attempt(last_step=60)
    snapshot = running(windows=at.windows(60, bad=(45,)), attempts=(newest,))
    assert trusted_by(decide(snapshot, now=NOW)) == set()


def test_not_trusted_while_an_incident_began_in_its_window():
    incident = Incident("alpha-i1", NOW, "waiting", "r", 0, 55, 55)
    snapshot = running(
        windows=at.windows(60), attempts=(at.attempt(last_step=60),), incidents=(incident,)
    )
    assert trusted_by(decide(snapshot, now=NOW)) == set()


def test_at_the_end_of_the_run_read_back_alone_promotes():
    snapshot = running(
        state="succeeded",
        attempts=(at.attempt(ended_at=NOW, last_step=52),),
        checkpoints=(checkpoint(52, "committed"),),
        windows=at.windows(52),
    )
    assert trusted_by(decide(snapshot, now=NOW)) == {"alpha-g1-s52"}


def test_unread_checkpoints_are_read_one_at_a_time_the_oldest_first():
    unread = [replace(checkpoint(step, "committed"), verified_at=None) for step in (40, 50)]
    snapshot = running(checkpoints=(checkpoint(30), *unread))
    [chore] = decide(snapshot, now=NOW).chores
    assert (chore.kind, chore.node) == ("verify", "oak")
    assert chore.args == {
        "location": "file:///alpha/g1-step40",
        "checkpoint": "alpha-g1-s40",
        "manifest_sha256": unread[0].manifest_sha256,
    }
    reading = (checkpoint(30), replace(unread[0], verifying=True), unread[1])
    assert decide(change(snapshot, checkpoints=reading), now=NOW).chores == ()


def test_a_failed_reading_quarantines_and_names_what_was_seen():
    found = "rank-0.safetensors: expected sha256:aa, seen sha256:bb"
    snapshot = running(checkpoints=(checkpoint(40), replace(checkpoint(50), problem=found)))
    [change_] = decide(snapshot, now=NOW).checkpoints
    assert (change_.id, change_.state) == ("alpha-g1-s50", "quarantined")
    assert found in change_.because


def policy(**changes):
    return at.spec(checkpoint={"every_steps": 10, "keep_best": 0, **changes})


def steps_kept(snapshot, *trouble):
    return {each.step for each in snapshot.checkpoints if each.id in kept(snapshot, trouble)}


def many(**changes):
    found = tuple(checkpoint(step) for step in range(10, 101, 10))
    return running(checkpoints=found, attempts=(at.attempt(last_step=100),), **changes)


def test_the_newest_are_kept():
    assert steps_kept(many(spec=policy(keep_last=3))) == {80, 90, 100}


def test_every_so_many_steps_one_is_kept():
    assert steps_kept(many(spec=policy(keep_last=1, keep_every=30))) == {30, 60, 90, 100}


def test_the_best_by_loss_is_kept_and_a_loss_that_is_not_finite_is_not_best():
    snapshot = many(spec=policy(keep_last=1, keep_best=1))
    losses = {20: float("nan"), 30: 1.5, 40: 2.0}
    found = tuple(replace(each, loss=losses.get(each.step)) for each in snapshot.checkpoints)
    assert steps_kept(change(snapshot, checkpoints=found)) == {30, 100}


def test_a_pinned_one_and_the_target_of_a_restore_are_kept():
    snapshot = many(
        spec=policy(keep_last=1), requests=(at.request("restore", checkpoint="alpha-g1-s20"),)
    )
    found = tuple(replace(each, pinned=each.step == 10) for each in snapshot.checkpoints)
    assert steps_kept(change(snapshot, checkpoints=found)) == {10, 20, 100}


def test_the_two_newest_trusted_before_trouble_are_held():
    assert steps_kept(many(spec=policy(keep_last=1)), 55) == {40, 50, 100}


def test_the_last_trusted_one_and_the_next_to_become_trusted_stay():
    found = [checkpoint(step, "committed") for step in range(20, 101, 10)]
    snapshot = running(
        spec=policy(keep_last=1),
        checkpoints=(checkpoint(10), *found),
        attempts=(at.attempt(last_step=100),),
    )
    assert steps_kept(snapshot) == {10, 20, 100}


def test_a_pending_numeric_rule_holds_what_it_may_need():
    rules = tuple(rule for rule in at.RULES if rule.name == "gradient not finite")
    snapshot = many(spec=policy(keep_last=1), rules=rules, windows=at.windows(100, bad=(40,)))
    retired = {c.args["checkpoint"] for c in decide(snapshot, now=NOW).chores}
    assert retired >= {"alpha-g1-s30", "alpha-g1-s80", "alpha-g1-s90"}, "it healed long ago"
    pending = change(snapshot, windows=at.windows(100, bad=(95,)))
    retired = {c.args["checkpoint"] for c in decide(pending, now=NOW).chores if c.kind == "retire"}
    assert retired.isdisjoint({"alpha-g1-s80", "alpha-g1-s90", "alpha-g1-s100"})
    assert "alpha-g1-s70" in retired


def test_each_verdict_says_why_and_agrees_with_what_a_turn_does():
    found = (
        checkpoint(5, "quarantined"),
        *(checkpoint(step) for step in range(10, 101, 10)),
    )
    marks = {10: {"pinned": True}, 20: {"verifying": True}, 30: {"loss": 0.5}}
    found = tuple(replace(each, **marks.get(each.step, {})) for each in found)
    snapshot = running(
        checkpoints=found,
        attempts=(at.attempt(last_step=100),),
        spec=policy(keep_last=2, keep_best=1, keep_every=50),
        requests=(at.request("restore", checkpoint="alpha-g1-s40"),),
        windows=at.windows(100, bad=(75,)),
    )
    turn = Turn(snapshot, NOW)
    said = {each.checkpoint.step: (each.goes, each.because) for each in verdicts(turn)}
    assert not turn.checkpoints
    for step, word in {
        5: "quarantined",
        10: "pinned",
        20: "being read",
        30: "keep_best",
        40: "asked to restore",
        50: "keep_every",
        90: "keep_last",
        100: "go on from it",
    }.items():
        assert said[step][0] is False
        assert word in said[step][1]
    assert {step for step, (goes, _) in said.items() if goes} == {60, 70, 80}
    retired = {c.id for c in decide(snapshot, now=NOW).checkpoints if c.state == "retired"}
    assert retired <= {"alpha-g1-s60", "alpha-g1-s70", "alpha-g1-s80"}


def test_a_k17_of_four_ranks_the_newest_two_remain_and_one_node_is_asked_to_delete():
    found = tuple(checkpoint(step, "committed") for step in (2, 4, 6))
    found = tuple(replace(each, state="trusted") for each in found)
    snapshot = running(
        checkpoints=found,
        attempts=(at.attempt(last_step=6),),
        spec=at.spec(checkpoint={"every_steps": 2, "keep_best": 0, "keep_last": 2}),
    )
    decision = decide(snapshot, now=NOW)
    chores = [each for each in decision.chores if each.kind == "retire"]
    assert [each.args["checkpoint"] for each in chores] == ["alpha-g1-s2"]


OLD = NOW - timedelta(days=31)


@pytest.mark.parametrize(
    ("changes", "others", "because"),
    [
        ({"created_at": OLD}, "trusted", "Retired: it was quarantined"),
        ({"created_at": NOW - timedelta(days=29)}, "trusted", "can be looked at for 30 days"),
        ({"created_at": OLD, "pinned": True}, "trusted", "it is pinned"),
        ({"created_at": OLD, "verifying": True}, "trusted", "its bytes are being read"),
        ({"created_at": OLD}, "committed", "no trusted one is there"),
    ],
)
def test_a_quarantined_one_goes_when_it_is_old_and_a_trusted_one_is_there(changes, others, because):
    bad = checkpoint(30, "quarantined", **changes)
    snapshot = running(checkpoints=(checkpoint(20, others), bad, checkpoint(40, others)))
    [verdict] = [each for each in verdicts(Turn(snapshot, NOW)) if each.checkpoint is bad]
    assert because in verdict.because
    assert verdict.goes == because.startswith("Retired")
    decision = decide(snapshot, now=NOW)
    retired = [each.id for each in decision.checkpoints if each.state == "retired"]
    assert (bad.id in retired) == verdict.goes
    removed = [each.args["location"] for each in decision.chores if each.kind == "retire"]
    assert (bad.location in removed) == verdict.goes


def test_nothing_is_retired_while_an_attempt_is_about_to_begin():
    snapshot = many(spec=policy(keep_last=1), state="recovering", nodes=())
    ended = change(snapshot, attempts=(at.attempt(ended_at=NOW),))
    assert not any(each.kind == "retire" for each in decide(ended, now=NOW).chores)


def test_retired_is_marked_and_its_bytes_are_removed():
    decision = decide(many(spec=policy(keep_last=1)), now=NOW)
    marked = {each.id for each in decision.checkpoints if each.state == "retired"}
    assert marked == {each.args["checkpoint"] for each in decision.chores if each.kind == "retire"}
    assert "alpha-g1-s100" not in marked


def test_the_steps_before_a_checkpoint_keep_their_batches_whatever_is_skipped():
    snapshot = branched()
    child = checkpoint(32, generation=2)
    skip = inherited_skip(snapshot, snapshot.run.spec, child)
    assert [batch_of_step(step, skip) for step in (30, 31, 32)] == [30, 34, 35]
    older = checkpoint(20)
    skip = inherited_skip(snapshot, snapshot.run.spec, older)
    assert skip == ((31, 33),)
    assert inherited_skip(snapshot, snapshot.run.spec, older, forget=True) == ()
    past = checkpoint(40)
    assert inherited_skip(snapshot, snapshot.run.spec, past) == ()


def test_a_preview_says_what_is_lost_what_differs_and_what_is_doubtful():
    snapshot = running()
    told = restore_preview(snapshot, {"checkpoint": "alpha-g1-s40"}, now=NOW)
    assert (told.step, told.current_step, told.steps_lost) == (40, 50, 10)
    assert told.seconds_lost == pytest.approx(0.9)
    assert "bit for bit" in told.differs[0]
    assert "committed, not trusted" in told.warnings[0]
    assert told.refused is None
    skipping = restore_preview(snapshot, {"checkpoint": "alpha-g1-s30", "skip_steps": 3}, now=NOW)
    assert skipping.differs == ("Batches 31 to 33 are skipped.",)
    assert skipping.warnings == ()
    queued = restore_preview(
        change(snapshot, state="queued"), {"checkpoint": "alpha-g1-s30"}, now=NOW
    )
    assert "queued" in queued.refused


def test_a_preview_of_an_abandoned_checkpoint_counts_from_the_fork():
    told = restore_preview(branched(), {"checkpoint": "alpha-g1-s50"}, now=NOW)
    assert told.steps_lost == 5
    assert "branch" in " ".join(told.warnings)


def test_a_checkpoint_committed_late_by_a_superseded_generation_stays_abandoned():
    late = replace(checkpoint(20, "committed"), abandoned=True)
    snapshot = change(branched(), checkpoints=(late, checkpoint(30)))
    decision = decide(snapshot, now=NOW + timedelta(seconds=1))
    assert not any(each.id == late.id and each.abandoned is False for each in decision.checkpoints)
    assert choose_newest(snapshot).checkpoint.id == "alpha-g1-s30"
