"""Attempts that end one after the other: pauses, what costs nothing, nodes that are not used again,
and when a person must look.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.recovery.endings import MAX_RETRIES
from control.snapshot import DrillStatus
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, exited, ranks, running, with_rank
from trainmaster.layout import roles
from trainmaster.orders import Drill


def fail(ring: Ring, number: int = 2, **changes: object) -> None:
    """Let one rank fail so, and its peers lose it."""
    found = ring.snapshot.ranks
    for each in found:
        found = with_rank(found, each.rank, state="exited", exit_code=75, exited_at=ring.now)
    ring.tell(ranks=with_rank(found, number, **{"exit_code": None, **changes}))
    ring.advance(2.5)


def begin_again(ring: Ring) -> float:
    """Let the next attempt begin and meet; return how long that was waited for, seconds."""
    since = ring.now
    ring.settle()
    while ring.snapshot.run.state == "recovering":
        ring.advance(0.5)
        ring.settle()
    ring.ready()
    ring.settle()
    return (ring.now - since).total_seconds()


def test_a_store_that_is_away_is_waited_out_longer_and_longer_and_costs_no_budget():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 1, "no_progress_limit": 1})))
    waited = []
    for _ in range(9):
        fail(ring, exit_code=74, failure={"because": "OSError: the store is away"})
        waited.append(begin_again(ring))
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert {each.cause_kind for each in ring.snapshot.attempts[1:]} == {"retry"}
    begun_from = {each.resumed_from_step for each in ring.snapshot.attempts[1:]}
    assert begun_from == {50}, "the checkpoint is not to blame"
    ring.kill()
    begin_again(ring)
    assert ring.snapshot.run.state == "running", "the budget for deaths is whole"


def test_a_store_that_never_comes_back_ends_in_a_spent_budget():
    ring = Ring(running())
    for _ in range(MAX_RETRIES + 1):
        fail(ring, exit_code=74)
        ring.settle()
        if ring.snapshot.run.state == "failed":
            break
        begin_again(ring)
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted")
    assert f"{MAX_RETRIES} attempts in a row" in run.because
    assert (ring.now - NOW).total_seconds() > 900


def test_a_commit_in_between_begins_the_pauses_anew():
    ring = Ring(running())
    fail(ring, exit_code=74)
    assert begin_again(ring) == 1
    fail(ring, exit_code=74)
    assert begin_again(ring) == 2
    ring.train(60)
    ring.commit(60)
    fail(ring, exit_code=74)
    assert begin_again(ring) == 1


def test_the_first_restart_is_at_once_and_later_ones_are_not():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 9, "no_progress_limit": 9})))
    waited = []
    for _ in range(4):
        ring.kill()
        waited.append(begin_again(ring))
    assert waited == [0, 1, 2, 4]


def two_nodes(**changes: object):
    """Alpha on oak, with elm beside it, about to begin its second attempt."""
    return running(
        nodes=(at.node("elm"), at.node(taken=frozenset(range(4)), held_here=frozenset(range(4)))),
        attempts=(at.attempt(first_step=None, last_step=None),),
        spec=at.spec(recovery={"max_restarts": 9, "no_progress_limit": 9}),
        **changes,
    )


def test_a_w23_a_node_that_fails_two_starts_in_a_row_is_cordoned_before_the_third():
    ring = Ring(two_nodes())
    ring.kill(1)
    begin_again(ring)
    assert {each.node for each in ring.snapshot.ranks} == {"oak"}, "its disks are warm"
    ring.kill(3)
    ended = ring.turn()
    [cordon] = ended.cordons
    assert cordon.node == "oak"
    assert cordon.because == (
        "Run alpha: node oak failed at the start of generations 1 and 2 in a row (rank 3), "
        "and no other node did."
    )
    assert any(each.kind == "node_excluded" for each in ended.events)
    begin_again(ring)
    assert {each.node for each in ring.snapshot.ranks} == {"elm"}


def test_when_another_node_fails_so_too_it_is_not_the_nodes():
    ring = Ring(two_nodes())
    for _ in range(2):
        ring.kill(1)
        begin_again(ring)
    ring.kill(1)
    assert ring.turn().cordons == (), "elm failed as oak did"


def test_a_node_that_nobody_can_stand_in_for_is_used_all_the_same():
    ring = Ring(two_nodes())
    ring.tell(nodes=(at.node("elm", 2), ring.snapshot.nodes[1]))
    ring.kill(1)
    begin_again(ring)
    ring.kill(1)
    ended = ring.turn()
    assert ended.cordons == ()
    assert any(each.kind == "node_suspected" for each in ended.events)


@pytest.mark.parametrize("changes", [{"exit_code": 74}, {"exit_code": 71}])
def test_neither_a_store_nor_memory_that_runs_out_is_put_down_to_a_node(changes):
    ring = Ring(two_nodes())
    fail(ring, **changes)
    begin_again(ring)
    fail(ring, **changes)
    assert ring.turn().cordons == ()


@pytest.mark.parametrize("second", [2, 3])
def test_memory_that_runs_out_twice_at_one_place_ends_with_a_proposal(second):
    ring = Ring(running())
    fail(ring, exit_code=71, failure={"because": "out of memory (tried to allocate 3 GiB)"})
    ring.settle()
    assert ring.snapshot.run.state in {"recovering", "starting"}, "once may be an accident"
    begin_again(ring)
    because = "out of memory (tried to allocate 3 GiB)"
    fail(ring, second, exit_code=71, failure={"because": because})
    ring.settle()
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "out_of_memory")
    for word in (
        "tried to allocate 3 GiB",
        "Twice at the same place",
        "parallel.micro_batch 4 instead of 8",
        "parallel.zero 1",
        "parallel.offload optimizer",
    ):
        assert word in run.because


def test_memory_that_runs_out_elsewhere_is_another_accident():
    ring = Ring(running())
    fail(ring, exit_code=71)
    begin_again(ring)
    attempts = ring.snapshot.attempts
    ring.tell(attempts=(*attempts[:-1], replace(attempts[-1], first_step=51, last_step=57)))
    fail(ring, exit_code=71)
    ring.settle()
    assert ring.snapshot.run.code is None


def test_a_c02_one_failure_of_a_group_costs_one_restart():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 3})))
    ring.kill(1)
    begin_again(ring)
    assert [each.cause_kind for each in ring.snapshot.attempts] == ["start", "restart"]


def test_a_w19_killing_and_coming_back_every_two_seconds_ends_at_the_limit():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 3, "no_progress_limit": 9})))
    restarts = 0
    while ring.snapshot.run.state == "running":
        ring.kill(restarts % 4)
        ring.settle()
        if ring.snapshot.run.state == "failed":
            break
        restarts += 1
        begin_again(ring)
        ring.advance(2)
    assert (restarts, ring.snapshot.run.code) == (3, "budget_exhausted")


def test_what_a_drill_did_is_marked_as_a_drill():
    drill = DrillStatus(Drill(id=7, fault="kill", rank=3, at_step=51), 1, ((1, 51, 51),))
    ring = Ring(running(drills=(drill,)))
    ring.kill(3)
    ended = ring.turn()
    assert ended.attempt_end.because == "rank 3 killed by signal 9 (drill kill)"
    assert ended.attempt_end.ended_by["drill"] == "kill"
    assert [each.data["drill"] for each in ended.events if each.kind == "run_recovering"] == [
        "kill"
    ]


def test_the_end_of_an_attempt_is_kept_as_what_it_was():
    assert len(roles(at.plan())) == 4
    found = exited(ranks(), 2, exit_code=70)
    ended = Ring(running(ranks=found)).turn()
    assert ended.attempt_end.ended_by == {"kind": "death", "rank": 2, "node": "oak"}


def test_a_c14_a_state_that_turns_bad_each_time_is_left_after_a_few_tries():
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 20, "no_progress_limit": 20})))
    begun_from = []
    for _ in range(6):
        fail(ring, exit_code=70)
        ring.settle()
        begin_again(ring)
        begun_from.append(ring.snapshot.attempt.resumed_from_step)
        newest = replace(ring.snapshot.attempt, first_step=51, last_step=70)
        ring.tell(attempts=(*ring.snapshot.attempts[:-1], newest))
    assert begun_from[:3] == [50, 50, 50]
    assert begun_from[3:] == [40, 40, 40]
