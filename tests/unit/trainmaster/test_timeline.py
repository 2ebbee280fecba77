"""The timeline of a step: its bytes, and the ratios that follow from it."""

from __future__ import annotations

import dataclasses
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster import timeline
from trainmaster.errors import IntegrityError
from trainmaster.timeline import KINDS, Action, Clock, Timeline

actions = st.builds(
    lambda kind, stage, number, start, took, size: Action(
        kind, stage, number, start, start + took, size
    ),
    st.sampled_from(KINDS),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-(2**40), 2**50),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
)


def of(*done: Action, length_ns: int = 100, **more: object) -> Timeline:
    told = Timeline(3, 1e9, 50.0, length_ns, Clock(), done)
    return dataclasses.replace(told, **more)  # type: ignore[arg-type]


@given(st.lists(actions, max_size=20))
def test_what_is_encoded_is_decoded(done: list[Action]) -> None:
    told = of(*done, clock=Clock(-0.5, 1e-4, 2e-6), dropped=4)
    assert timeline.decode(timeline.encode(told)) == told


def test_a_large_step_fits_into_a_frame_and_of_a_larger_one_it_is_told_how_much_is_missing() -> (
    None
):
    step = [
        Action("forward", 8, each, each * 1000, each * 1000 + 999, 7) for each in range(64 * 8 * 6)
    ]
    assert len(timeline.encode(of(*step))) < 40_000
    found = timeline.decode(timeline.encode(of(*step * 10)))
    assert (len(found.actions), found.dropped) == (
        timeline.MAX_ACTIONS,
        30720 - timeline.MAX_ACTIONS,
    )


@given(st.binary(max_size=200))
def test_bytes_that_are_no_timeline_are_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        timeline.decode(data)


def test_a_damaged_timeline_is_refused() -> None:
    whole = timeline.encode(of(Action("forward", 0, 0, 1, 2)))
    bomb = whole[: whole.index(b"}") + 1] + zlib.compress(bytes(10_000_000))
    for bad in (whole[:-1], whole[:3], bomb, whole.replace(b'"step": 3', b'"step": 0')):
        with pytest.raises(IntegrityError):
            timeline.decode(bad)


def test_the_ratios_of_a_step_add_up_and_what_overlaps_counts_once() -> None:
    told = of(
        Action("data", -1, -1, 0, 10),
        Action("forward", 0, 0, 10, 30),
        Action("reduce", 0, 0, 15, 75),
        Action("send_activation", 0, 0, 28, 32),
        Action("wait_gradient", 0, 0, 32, 40),
        Action("backward", 0, 0, 40, 60),
        Action("wait_reduce", -1, -1, 60, 75),
        Action("optimizer", -1, -1, 80, 90),
    )
    found = timeline.ratios(told, 80)
    assert found.compute_ratio == pytest.approx(0.4)
    assert found.exposed_comm_ratio == pytest.approx(0.25)
    assert found.optimizer_ratio == pytest.approx(0.1)
    assert found.idle_ratio == pytest.approx(0.25)
    assert found.bubble_ratio == pytest.approx(0.5)


def test_a_span_is_taken_on_one_clock_pass_by_pass() -> None:
    ns = 1_000_000_000
    first = of(
        Action("pass", -1, -1, 0, 10 * ns),
        Action("forward", 0, 0, 1 * ns, 2 * ns),
        Action("backward", 0, 0, 8 * ns, 9 * ns),
        Action("pass", -1, -1, 20 * ns, 30 * ns),
        Action("forward", 0, 1, 21 * ns, 29 * ns),
    )
    second = of(
        Action("pass", -1, -1, 0, 10 * ns),
        Action("forward", 1, 0, 2 * ns, 4 * ns),
        Action("pass", -1, -1, 20 * ns, 30 * ns),
        Action("forward", 1, 1, 22 * ns, 24 * ns),
        origin_s=1050.0,
        clock=Clock(offset_s=-1000.0),
    )
    assert timeline.span_of([first, second]) == 16 * ns
    assert timeline.span_of([of()]) is None


def test_a_wait_divides_at_the_instant_of_sending() -> None:
    sender = of(
        Action("send_activation", 0, 4, 500, 510),
        Action("send_gradient", 2, 4, 100, 110),
        clock=Clock(offset_s=-10.0),
        origin_s=60.0,
    )
    receiver = of(
        Action("wait_activation", 1, 4, 300, 650),
        Action("wait_gradient", 1, 4, 700, 750),
        Action("wait_activation", 1, 9, 800, 900),
        Action("wait_send", 1, 4, 900, 930),
    )
    found = timeline.waits(receiver, [receiver, sender])
    assert found.unsent_s * 1e9 == pytest.approx(200)
    assert found.under_way_s * 1e9 == pytest.approx(150 + 50)
    assert found.unasked_s * 1e9 == pytest.approx(30)
