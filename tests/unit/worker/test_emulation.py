"""How much longer an emulated device and an emulated link take."""

from __future__ import annotations

import pytest

from worker.emulation import Pace, message_s, ring_s
from worker.launch import Emulation, Link


def test_a_real_device_rests_never() -> None:
    assert Pace(Emulation()).rest_s("forward", 3, 0.1, now=1.0) == 0.0


def test_a_device_of_a_quarter_of_the_speed_takes_four_times_as_long() -> None:
    pace = Pace(Emulation(speed=0.25))
    assert pace.rest_s("backward", 3, 0.1, now=1.0) == pytest.approx(0.3)


def test_fixed_layer_times_count_layers_and_a_backward_takes_twice_a_forward() -> None:
    pace = Pace(Emulation(layer_time_s=0.1))
    assert pace.rest_s("forward", 3, 0.05, now=1.0) == pytest.approx(0.25)
    assert pace.rest_s("backward", 3, 0.05, now=1.0) == pytest.approx(0.55)
    halves = [pace.rest_s(half, 3, 0.05, now=1.0) for half in ("input", "weights")]
    assert halves == pytest.approx([0.25, 0.25]), "the halves of a split backward"
    assert pace.rest_s("forward", 3, 9.0, now=1.0) == 0.0, "time cannot be given back"


def test_a_message_takes_the_latency_and_its_bytes() -> None:
    assert message_s(Link(latency_ms=20, mbps=8), 1_000_000) == pytest.approx(1.02)
    assert message_s(Link(latency_ms=20), 1_000_000) == pytest.approx(0.02)
    assert message_s(None, 1_000_000) == 0.0


def test_a_ring_sends_two_messages_less_two_over_its_slowest_link() -> None:
    links = {1: Link(latency_ms=1), 2: Link(latency_ms=10)}
    assert ring_s(links, 3, 300) == pytest.approx(4 * 0.01)
    assert ring_s({}, 3, 300) == 0.0
    assert ring_s(links, 1, 300) == 0.0
