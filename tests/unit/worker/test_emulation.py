"""How much longer an emulated device and an emulated link take."""

from __future__ import annotations

import threading
import time

import pytest

from trainmaster.emulation import Device, Drift, Failure, Link
from worker.emulation import Pace, SlowLink, Work, message_s, ring_s
from worker.faults import failure_in
from worker.launch import Emulation


def takes_s(pace: Pace, work: Work = "forward", elapsed_s: float = 0.0) -> float:
    return pace.takes_s(work, 3, elapsed_s, now=1.0)


def test_a_real_device_takes_what_it_takes() -> None:
    pace = Pace(Emulation())
    assert takes_s(pace, elapsed_s=0.1) == 0.1
    began, ended = pace.rest("forward", 3, started := time.perf_counter())
    assert began == started <= ended


def test_a_device_of_a_quarter_of_the_speed_takes_four_times_as_long() -> None:
    assert takes_s(Pace(Emulation(speed=0.25)), "backward", 0.1) == pytest.approx(0.4)


def test_fixed_layer_times_count_layers_and_a_backward_takes_twice_a_forward() -> None:
    pace = Pace(Emulation(layer_time_s=0.1))
    assert takes_s(pace, "forward", 0.05) == pytest.approx(0.3)
    assert takes_s(pace, "backward", 0.05) == pytest.approx(0.6)
    halves = [takes_s(pace, "input", 0.05), takes_s(pace, "weights", 0.05)]
    assert halves == pytest.approx([0.3, 0.3]), "the halves of a split backward"
    assert takes_s(pace, "forward", 9.0) == 9.0, "time cannot be given back"
    assert takes_s(pace, "loss", 0.05) == 0.0, "it is part of no layer"


def test_jitter_makes_each_action_up_to_its_share_longer_and_the_same_in_each_life() -> None:
    def lives(rank: int, seed: int, step: int) -> list[float]:
        pace = Pace(Emulation(layer_time_s=0.1, jitter=0.5, seed=seed), rank=rank)
        pace.begin_step(step)
        return [takes_s(pace) for _ in range(20)]

    first = lives(1, 7, 3)
    assert first == lives(1, 7, 3)
    assert min(first) >= 0.3
    assert max(first) <= 0.45
    assert len(set(first)) == 20
    others = [lives(2, 7, 3), lives(1, 8, 3), lives(1, 7, 4)]
    assert first not in others


def test_a_drift_changes_the_speed_evenly_from_its_step_on() -> None:
    drift = Drift(at_step=10, over_steps=4, speed=0.5)
    assert [drift.speed_at(step) for step in (1, 9, 10, 11, 13, 99)] == [
        1,
        1,
        0.875,
        0.75,
        0.5,
        0.5,
    ]
    pace = Pace(Emulation(layer_time_s=0.1, drift=drift))
    pace.begin_step(99)
    assert takes_s(pace) == pytest.approx(0.6)
    pace.begin_step(1)
    assert takes_s(pace) == pytest.approx(0.3)


def test_a_device_that_fails_is_repaired_after_its_generations() -> None:
    failure = Failure(at_step=5, generations=2)
    assert [failure_in(failure, generation) for generation in (1, 2, 3)] == [failure, failure, None]
    assert failure_in(None, 1) is None


def test_an_emulated_action_begins_when_the_device_was_free() -> None:
    pace = Pace(Emulation(layer_time_s=0.01))
    first = pace.rest("forward", 1, time.perf_counter())
    second = pace.rest("forward", 1, time.perf_counter())
    assert second[0] == first[1], "what the host spends in between does not count"
    assert second[1] - first[0] == pytest.approx(0.02) or second[1] - second[0] > 0.01
    pace.woke(at := time.perf_counter())
    assert pace.rest("forward", 1, time.perf_counter())[0] == at, "nor after a message has come"
    pace.set_out()
    started = time.perf_counter()
    assert pace.rest("forward", 1, started)[0] == started, "a pass begins when it begins"


def test_what_leaves_on_the_way_leaves_when_the_device_has_got_there() -> None:
    pace = Pace(Emulation(layer_time_s=0.01))
    left: list[float] = []

    def note() -> None:
        left.append(time.perf_counter())

    began, ended = pace.rest("backward", 2, time.perf_counter(), leaving=[(0.5, note), (1.0, note)])
    assert ended - began == pytest.approx(0.04)
    assert began + 0.02 <= left[0] < left[1]
    assert left[1] >= ended


def test_a_message_takes_the_latency_and_its_bytes() -> None:
    assert message_s(Link(latency_ms=20, mbps=8), 1_000_000) == pytest.approx(1.02)
    assert message_s(Link(latency_ms=20), 1_000_000) == pytest.approx(0.02)
    assert message_s(None, 1_000_000) == 0.0


def test_messages_occupy_a_link_one_after_the_other_and_their_latencies_overlap() -> None:
    link = SlowLink(Link(latency_ms=100, mbps=8))
    assert link.due(100_000, now=5.0) == pytest.approx(5.2)
    assert link.due(100_000, now=5.0) == pytest.approx(5.3), "0.1 s on the link behind the first"
    assert link.due(100_000, now=9.0) == pytest.approx(9.2), "it has been free since"


def test_the_latencies_of_a_link_with_jitter_are_the_same_in_each_life() -> None:
    def lives() -> list[float]:
        link = SlowLink(Link(latency_ms=100, jitter=1.0), seed="a")
        return [link.due(1, now=0.0) for _ in range(5)]

    assert lives() == lives()
    assert all(0.1 <= each <= 0.2 for each in lives())
    assert len(set(lives())) == 5


class Sent:
    def __init__(self, order: list[int], number: int) -> None:
        order.append(number)

    def wait(self) -> None:
        pass


def test_a_sender_is_not_kept_and_messages_arrive_in_order() -> None:
    link, order, done = SlowLink(Link(latency_ms=5)), list[int](), threading.Event()
    for number in range(3):
        link.carry(lambda number=number: Sent(order, number), 10).wait()
    link.carry(lambda: done.set() or Sent(order, 3), 10)
    assert done.wait(10)
    assert order[:3] == [0, 1, 2]


def test_who_waits_for_what_could_not_be_delivered_is_told() -> None:
    link = SlowLink(Link())

    def broken() -> Sent:
        raise RuntimeError("connection closed by peer")

    first = link.carry(broken, 10)
    while first.failure is None:
        time.sleep(0.001)
    for delivery in (first, link.carry(broken, 10)):
        with pytest.raises(RuntimeError, match="closed by peer"):
            delivery.wait()


def test_a_ring_sends_two_messages_less_two_over_its_slowest_link() -> None:
    links = {1: Link(latency_ms=1), 2: Link(latency_ms=10)}
    assert ring_s(links, 3, 300) == pytest.approx(4 * 0.01)
    assert ring_s({}, 3, 300) == 0.0
    assert ring_s(links, 1, 300) == 0.0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"jitter": -0.1}, "jitter"),
        ({"drift": {"at_step": 0, "speed": 0.5}}, "drift.at_step"),
        ({"drift": {"at_step": 1, "speed": 0}}, "drift.speed"),
        ({"failure": {"at_step": 3, "how": "explode"}}, "failure.how"),
        ({"sped": 1}, "sped"),
    ],
)
def test_what_cannot_be_emulated_is_refused_by_name(given: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Device.model_validate(given)
