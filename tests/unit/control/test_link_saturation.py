"""The share of a link that sums of gradients take: of which link, and when a rule says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.rules.judgement import Judgement
from control.rules.members import Seat
from control.rules.planned import slowest_ring_link
from control.rules.watching import judge_all
from tests.fakes import snapshots as at

MB = 1e6
RULE = next(rule for rule in at.RULES if rule.name == "link saturation")


def measured(**links: float) -> dict[str, object]:
    found = {peer: {"latency_s": 1e-4, "bytes_per_s": rate} for peer, rate in links.items()}
    return {"calibration": {"links": found}}


def stated(**mbps: float | None) -> dict[str, object]:
    return {"links": {peer: {"latency_ms": 1.0, "mbps": rate} for peer, rate in mbps.items()}}


def copies(*nodes: str, stage: int = 0) -> list[Seat]:
    return [Seat(number, number, stage, node) for number, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("seats", "profiles", "bytes_per_s"),
    [
        (copies("oak", "elm"), {}, None),
        (copies("oak", "oak"), {"oak": measured(elm=MB)}, None),
        (copies("oak"), {"oak": measured(elm=MB)}, None),
        (copies("oak", "elm"), {"oak": measured(elm=9 * MB), "elm": measured(oak=MB)}, MB),
        # What was measured stands over what is stated.
        (copies("oak", "elm"), {"oak": {**stated(elm=8.0), **measured(elm=3 * MB)}}, 3 * MB),
        (copies("oak", "elm"), {"oak": stated(elm=80.0), "elm": stated(oak=None)}, 10 * MB),
        # A link that no ring crosses does not count.
        (
            copies("oak", "elm", "fir"),
            {"oak": measured(elm=9 * MB, fir=MB), "fir": measured(oak=5 * MB)},
            5 * MB,
        ),
        (
            copies("oak", "elm") + copies("fir", "ash", stage=1),
            {"oak": measured(elm=9 * MB), "ash": measured(fir=2 * MB)},
            2 * MB,
        ),
    ],
)
def test_the_slowest_known_link_of_the_rings_is_the_one_that_counts(seats, profiles, bytes_per_s):
    assert slowest_ring_link(seats, profiles) == bytes_per_s


def judged(used: float, *, capacity: float | None) -> Judgement | None:
    """Return what the rule says of two minutes in which the ranks moved `used` bytes a second."""
    homes = tuple(replace(rank, node="oak" if rank.rank < 2 else "elm") for rank in at.ranks())
    profile = measured(elm=capacity) if capacity is not None else {}
    nodes = (at.node(profile=profile), at.node("elm"))
    told = {
        **at.windows(50),
        "bandwidth_bytes_per_s": at.samples(
            ((step, used) for step in range(1, 51)), step_time_s=3.0
        ),
    }
    found = judge_all(at.running(rules=(RULE,), ranks=homes, nodes=nodes, windows=told))
    return found[0] if found else None


@pytest.mark.parametrize(
    ("used", "fires"), [(0.79 * MB, False), (0.81 * MB, True), (1.1 * MB, True)]
)
def test_more_than_80_percent_of_a_calibrated_link_for_a_minute_is_told(used, fires):
    judgement = judged(used, capacity=MB)
    assert judgement is not None
    assert (judgement.state == "firing") is fires


def test_without_a_known_capacity_nothing_is_said():
    judgement = judged(1.1 * MB, capacity=None)
    assert judgement is None or judgement.state == "inactive"
