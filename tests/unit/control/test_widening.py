"""What is bad on all ranks of a node, or on all nodes, is told once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.rules.backtest import backtest
from control.rules.frame import column_of
from control.rules.history import history_of
from control.rules.names import columns_of
from control.rules.watching import judge_all
from tests.fakes import snapshots as at
from trainmaster.rule import Rule

SLOWER = next(rule for rule in at.RULES if rule.name == "rank slower than before")
STEPS, SLOWS_AT = 90, 50


def fired(homes: dict[int, str | None], factors: dict[int, float]) -> list[tuple[str, int]]:
    """Return (scope, first bad step) of what fires where ranks slow down by factors at step 51."""
    named = {}
    for rank, node in homes.items():
        place = f"compute_s@rank={rank}@stage={rank}" + (f"@node={node}" if node else "")
        own = 0.1 * (1 + 0.1 * rank)
        slow = own * factors.get(rank, 1.0)
        named[place] = column_of([own] * SLOWS_AT + [slow] * (STEPS - SLOWS_AT))
    table = columns_of(named)
    history = history_of(
        "made", range(1, STEPS + 1), {}, of_ranks=table.of_ranks, seats=table.seats
    )
    found = backtest((SLOWER,), history)["findings"]
    return [(each["scope"], each["first_bad_step"]) for each in found]


ONE_NODE = dict.fromkeys(range(4), "oak")
TWO_NODES = {0: "oak", 1: "oak", 2: "elm", 3: "elm"}
LONE_RANKS = {0: "oak", 1: "elm", 2: "fir"}
BAD_FROM = SLOWS_AT + 9
"""The step in which most of the window of 16 are slow."""


@pytest.mark.parametrize(
    ("homes", "factors", "scopes"),
    [
        (ONE_NODE, {1: 3.0}, ["rank 1"]),
        (ONE_NODE, {1: 3.0, 2: 3.0}, ["rank 1", "rank 2"]),
        (ONE_NODE, dict.fromkeys(range(4), 3.0), ["node oak"]),
        # One of them stays just above the bar.
        (ONE_NODE, {0: 3.0, 1: 2.5, 2: 3.0, 3: 1.9}, ["node oak"]),
        (TWO_NODES, {2: 3.0, 3: 3.0}, ["node elm"]),
        (TWO_NODES, {0: 3.0, 2: 3.0, 3: 3.0}, ["node elm", "rank 0"]),
        (TWO_NODES, dict.fromkeys(range(4), 3.0), ["run"]),
        (LONE_RANKS, {2: 3.0}, ["rank 2"]),
        (LONE_RANKS, dict.fromkeys(range(3), 3.0), ["run"]),
        (dict.fromkeys(range(3)), dict.fromkeys(range(3), 3.0), ["run"]),
        (ONE_NODE, {}, []),
    ],
)
def test_it_is_told_of_the_widest_that_is_slow_as_a_whole(homes, factors, scopes):
    found = fired(homes, factors)
    assert sorted(scope for scope, _ in found) == scopes
    assert {step for _, step in found} <= {BAD_FROM}


def test_live_runs_are_judged_alike():
    ranks = tuple(replace(each, node="oak") for each in at.ranks())
    told = {
        "compute_s": {
            rank.rank: at.samples(
                (step, 0.1 if step <= SLOWS_AT else 0.3) for step in range(1, STEPS + 1)
            )
            for rank in ranks
        }
    }
    found = judge_all(at.running(rules=(SLOWER,), ranks=ranks, rank_windows=told))
    assert [each.scope for each in found if each.state == "firing"] == ["node oak"]


@pytest.mark.parametrize("scope", ["run", "stage", "replica", "link"])
def test_only_ranks_and_nodes_have_something_wider(scope):
    body = {"name": "r", "metric": "compute_s", "when": {"condition": "above", "value": 1}}
    with pytest.raises(ValueError, match=f"ranks or nodes, not on scope {scope}"):
        Rule.model_validate({**body, "scope": scope, "widens": True})
