"""What an agent decides, over hand-made tables and over whole random lives of a node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.control_plane import assignment
from trainmaster.orders import Order
from trainmaster.wire import Assignment
from worker.agent.reconcile import (
    FAILURE_GRACE_S,
    Action,
    CloseStore,
    HostStore,
    RankSeen,
    Seen,
    StartRank,
    StopGeneration,
    WriteInbox,
    merged_inbox,
    reconcile,
    waits,
)
from worker.launch import Inbox

NOTHING = Seen(nest_ready=True, ranks={}, stores={}, inboxes={})
ALIVE = RankSeen(slot=0, phase="alive")
DONE = RankSeen(slot=0, phase="exited", exited_at=1.0)
FAILED = RankSeen(slot=0, phase="exited", failed=True, exited_at=1.0)


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_the_inbox_is_written_before_the_first_rank_starts():
    actions = reconcile([assignment(ranks=2)], NOTHING, now=0.0)
    assert kinds(actions) == ["WriteInbox", "StartRank", "StartRank"]


def test_a_store_is_hosted_and_ranks_wait_for_its_address():
    wanted = assignment(store=None, hosts_store=True)
    actions = reconcile([wanted], NOTHING, now=0.0)
    assert HostStore("r1", 1) in actions
    assert "StartRank" not in kinds(actions)
    hosted = replace(NOTHING, stores={("r1", 1): "h:1"}, inboxes={("r1", 1): Inbox()})
    assert reconcile([wanted], hosted, now=0.0) == []
    assert waits([wanted], hosted)


def test_nothing_starts_before_the_nest_is_ready():
    actions = reconcile([assignment()], replace(NOTHING, nest_ready=False), now=0.0)
    assert kinds(actions) == ["WriteInbox"]


def test_a_lost_store_is_hosted_again_only_while_no_rank_has_met_there():
    wanted = assignment(store="old:1", hosts_store=True)
    assert HostStore("r1", 1) in reconcile([wanted], NOTHING, now=0.0)
    seen = replace(NOTHING, ranks={("r1", 1, 0): ALIVE})
    assert HostStore("r1", 1) not in reconcile([wanted], seen, now=0.0)


def test_what_is_not_assigned_is_stopped_once_and_its_store_closed():
    seen = replace(NOTHING, ranks={("r1", 1, 0): ALIVE}, stores={("r1", 1): "h:1"})
    assert reconcile([], seen, now=0.0) == [
        StopGeneration("r1", 1, "no longer assigned"),
        CloseStore("r1", 1),
    ]
    stopping = replace(seen, stopping=frozenset({("r1", 1)}))
    assert reconcile([], stopping, now=0.0) == [CloseStore("r1", 1)]


def test_new_ranks_wait_until_older_ones_of_their_run_are_dead():
    seen = replace(NOTHING, ranks={("r1", 1, 3): replace(ALIVE, slot=3)})
    actions = reconcile([assignment(generation=2)], seen, now=0.0)
    assert StopGeneration("r1", 1, "superseded by generation 2") in actions
    assert "StartRank" not in kinds(actions)
    dead = replace(NOTHING, ranks={("r1", 1, 3): DONE})
    assert "StartRank" in kinds(reconcile([assignment(generation=2)], dead, now=0.0))


def test_a_slot_is_free_only_when_its_holder_is_dead_whosever_it_was():
    seen = replace(NOTHING, ranks={("other", 5, 0): ALIVE}, stopping=frozenset({("other", 5)}))
    assert "StartRank" not in kinds(reconcile([assignment()], seen, now=0.0))


def test_an_older_generation_than_one_already_seen_never_starts():
    seen = replace(NOTHING, ranks={("r1", 2, 0): DONE})
    assert reconcile([assignment(generation=1)], seen, now=0.0) == []


def test_a_rank_that_exited_is_never_started_again():
    for rank in (DONE, FAILED):
        seen = replace(NOTHING, ranks={("r1", 1, 0): rank}, inboxes={("r1", 1): Inbox()})
        assert reconcile([assignment()], seen, now=9.0) == []
        assert waits([assignment()], seen)


def test_a_failure_ends_its_group_after_a_moment_and_starts_nothing_more():
    ranks = {("r1", 1, 0): replace(ALIVE, slot=1), ("r1", 1, 1): FAILED}
    seen = replace(NOTHING, ranks=ranks)
    early = reconcile([assignment(ranks=3)], seen, now=1.0 + FAILURE_GRACE_S / 2)
    assert early == []
    late = reconcile([assignment(ranks=3)], seen, now=1.0 + FAILURE_GRACE_S)
    assert late == [StopGeneration("r1", 1, "rank 1 failed")]


def test_a_rank_that_is_done_lets_the_others_go_on():
    seen = replace(NOTHING, ranks={("r1", 1, 0): DONE, ("r1", 1, 1): ALIVE})
    assert "StopGeneration" not in kinds(reconcile([assignment(ranks=2)], seen, now=99.0))


def test_the_inbox_keeps_orders_that_are_no_longer_open():
    before = Inbox(orders=[Order(seq=1, kind="hold")])
    inbox = merged_inbox(before, assignment(orders=[Order(seq=2, kind="release")]))
    assert [order.seq for order in inbox.orders] == [1, 2]
    assert merged_inbox(inbox, assignment()) == inbox


@dataclass
class ModelNode:
    """A node that does at once what it is asked, and records every rank's life."""

    ranks: dict[tuple[str, int, int], RankSeen] = field(default_factory=dict)
    stores: dict[tuple[str, int], str | None] = field(default_factory=dict)
    inboxes: dict[tuple[str, int], Inbox] = field(default_factory=dict)
    stopping: set[tuple[str, int]] = field(default_factory=set)
    now: float = 0.0

    def seen(self) -> Seen:
        return Seen(
            True, dict(self.ranks), dict(self.stores), dict(self.inboxes), frozenset(self.stopping)
        )

    def turn(self, wanted: list[Assignment]) -> list[Action]:
        actions = reconcile(wanted, self.seen(), now=self.now)
        for action in actions:
            self.do(action)
        return actions

    def do(self, action: Action) -> None:
        match action:
            case StartRank(each, rank, slot):
                assert (each.run, each.generation, rank) not in self.ranks, "started twice"
                living = {k: r for k, r in self.ranks.items() if r.phase != "exited"}
                assert all(other.slot != slot for other in living.values()), "slot taken"
                assert all(key[0] != each.run or key[1] == each.generation for key in living), (
                    "two generations of a run at once"
                )
                assert (each.run, each.generation) in self.inboxes
                self.ranks[each.run, each.generation, rank] = RankSeen(slot, "alive")
            case StopGeneration(run, generation, _):
                self.stopping.add((run, generation))
            case WriteInbox(run, generation, inbox):
                self.inboxes[run, generation] = inbox
            case HostStore(run, generation):
                self.stores[run, generation] = "h:1"
            case CloseStore(run, generation):
                self.stores.pop((run, generation))

    def exit(self, key: tuple[str, int, int], *, failed: bool) -> None:
        rank = self.ranks[key]
        self.ranks[key] = RankSeen(rank.slot, "exited", failed, self.now)
        if not any(k[:2] == key[:2] and r.phase != "exited" for k, r in self.ranks.items()):
            self.stopping.discard(key[:2])

    def living(self) -> list[tuple[str, int, int]]:
        return sorted(key for key, rank in self.ranks.items() if rank.phase != "exited")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_random_life_never_breaks_a_promise_and_always_comes_to_rest(data: st.DataObject):
    node, wanted = ModelNode(), []
    for _ in range(data.draw(st.integers(1, 12))):
        node.now += 1.0
        match data.draw(st.sampled_from(["assign", "exit", "fail", "nothing"])):
            case "assign":
                wanted = [
                    assignment(
                        run=run,
                        generation=data.draw(st.integers(1, 4)),
                        ranks=data.draw(st.integers(1, 3)),
                        hosts_store=data.draw(st.booleans()),
                        store=data.draw(st.sampled_from([None, "h:1"])),
                    )
                    for run in data.draw(st.sets(st.sampled_from(["a", "b"])))
                ]
            case "exit" | "fail" as how if node.living():
                key = data.draw(st.sampled_from(node.living()))
                node.exit(key, failed=how == "fail")
            case _:
                pass
        node.turn(wanted)
    for _ in range(10):
        node.now += 1.0
        stopping = bool(node.stopping)
        if not node.turn(wanted) and not stopping:
            break
        for key in node.living():
            if key[:2] in node.stopping:
                node.exit(key, failed=True)
    assert node.turn(wanted) == [], "repeating does nothing"
    keys = {(each.run, each.generation) for each in wanted}
    assert {key[:2] for key in node.living()} <= keys
    assert set(node.stores) <= keys
