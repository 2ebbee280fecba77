"""Rules on links: which ranks a link is judged by, and what its alert is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.rules.members import Seat, members_of
from control.rules.watching import judge_all
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from trainmaster.rule import Rule


def rule(metric: str, **changes) -> Rule:
    return Rule.model_validate(
        {
            "name": "slow link",
            "metric": metric,
            "scope": "link",
            "when": {"condition": "above", "value": 0.5},
            "for": {"steps": 3},
            **changes,
        }
    )


def seats(*places: tuple[int, int, str | None]) -> list[Seat]:
    return [Seat(rank, *place) for rank, place in enumerate(places)]


@pytest.mark.parametrize(
    ("metric", "places", "links"),
    [
        # Copies of a stage on two nodes sum gradients over what joins them.
        ("latency_ms", [(0, 0, "oak"), (1, 0, "elm")], {"link elm - oak": (0, 1)}),
        ("latency_ms", [(0, 0, "oak"), (0, 1, "elm")], {}),
        (
            "latency_ms",
            [(0, 0, "oak"), (0, 1, "fir"), (1, 0, "elm"), (1, 1, "ash")],
            {"link ash - fir": (1, 3), "link elm - oak": (0, 2)},
        ),
        # Messages go from stage to stage of one replica.
        ("p2p_wait_s", [(0, 0, "oak"), (0, 1, "elm")], {"link elm - oak": (0, 1)}),
        ("p2p_wait_s", [(0, 0, "oak"), (1, 0, "elm")], {}),
        ("p2p_wait_s", [(0, 0, "oak"), (0, 1, "oak")], {}),
        ("p2p_wait_s", [(0, 0, "oak"), (0, 1, None)], {}),
        (
            "p2p_wait_s",
            [(0, 0, "oak"), (0, 1, "elm"), (0, 2, "fir")],
            {"link elm - fir": (1, 2), "link elm - oak": (0, 1)},
        ),
    ],
)
def test_a_link_is_judged_by_the_ranks_that_speak_over_it(metric, places, links):
    found = members_of(rule(metric), seats(*places))
    assert {each.name: each.ranks for each in found} == links


def on_two_nodes(**waits: float) -> Ring:
    """A run whose stages are on two nodes, of which the ranks of each wait for so long."""
    homes = {0: "oak", 1: "elm", 2: "oak", 3: "elm"}
    ranks = tuple(replace(each, node=homes[each.rank]) for each in at.ranks())
    told = {
        "p2p_wait_s": {
            rank: at.samples((step, waits[node]) for step in range(1, 31))
            for rank, node in homes.items()
        }
    }
    asking = rule("p2p_wait_s", mode="ask", actions=[{"action": "checkpoint"}])
    nodes = (at.node(), at.node("elm"))
    return Ring(at.running(rules=(asking,), ranks=ranks, nodes=nodes, rank_windows=told))


def test_a_slow_link_opens_an_incident_that_names_both_ends():
    ring = on_two_nodes(oak=0.8, elm=0.9)
    ring.settle()
    [incident] = ring.snapshot.incidents
    assert incident.proposed is not None
    assert incident.proposed["scope"] == "link elm - oak"
    assert "p2p_wait_s of link elm - oak was bad at steps 1 to 30" in incident.proposed["evidence"]
    [alert] = ring.snapshot.alerts
    assert (alert.scope, alert.state, alert.value) == ("link elm - oak", "firing", 0.8)


def test_a_stage_that_waits_for_a_slow_one_is_no_slow_link():
    found = judge_all(on_two_nodes(oak=0.01, elm=0.9).snapshot)
    assert [each.state for each in found] == ["inactive"]
