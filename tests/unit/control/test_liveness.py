"""How long a node is believed, and how often it is to be heard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from control.liveness.leases import may_take_ranks, node_state, sync_interval_s
from control.snapshot import Node

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def silent(seconds: float, *, interval_s: float = 1.0) -> Node:
    heard_at = NOW - timedelta(seconds=seconds)
    return Node("n1", 4, heard_at, "b1", "h", sync_interval_s=interval_s)


@pytest.mark.parametrize(
    ("num_nodes", "interval_s"), [(0, 1), (1250, 1), (2500, 2), (5000, 4), (6250, 5), (10**6, 5)]
)
def test_a_fleet_that_would_send_too_much_is_asked_less_often(
    num_nodes: int, interval_s: float
) -> None:
    assert sync_interval_s(num_nodes) == interval_s


@pytest.mark.parametrize(
    ("silence_s", "interval_s", "state"),
    [
        (2.9, 1, "present"),
        (3.0, 1, "late"),
        (9.9, 1, "late"),
        (10.0, 1, "lost"),
        (6.9, 5, "present"),
        (7.0, 5, "late"),
        (13.9, 5, "late"),
        (14.0, 5, "lost"),
    ],
)
def test_a_node_is_waited_for_as_much_longer_as_it_is_asked_less_often(
    silence_s: float, interval_s: float, state: str
) -> None:
    node = silent(silence_s, interval_s=interval_s)
    assert node_state(node, now=NOW) == state
    assert may_take_ranks(node, now=NOW) == (state == "present")


def test_a_lease_does_not_run_while_no_control_plane_was_there_to_hear() -> None:
    node = silent(100)
    assert node_state(node, now=NOW, control_up_since=NOW - timedelta(seconds=2)) == "present"
    assert not may_take_ranks(node, now=NOW)
