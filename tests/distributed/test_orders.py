"""Orders reach all ranks at the same step boundary and are acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from trainmaster.orders import Order

PAIR = {"replicas": 2, "stages": 2}
LONG = 100_000


def test_a_held_run_waits_at_a_boundary_and_goes_on_when_released(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=6)
    plan = plan_of(spec, **PAIR)
    twin = trained(tmp_path / "twin", spec, plan)
    hold = Order(seq=1, kind="hold")
    with started(tmp_path / "held", spec, plan, orders=[hold]) as generation:
        generation.wait_for(lambda: generation.events("order_applied"))
        [applied] = generation.events("order_applied")
        for rank in range(4):
            generation.wait_for(lambda rank=rank: list(generation.rows(rank)) == [1])
        generation.tell(Order(seq=2, kind="checkpoint"), Order(seq=3, kind="release"))
        assert generation.join() == [0, 0, 0, 0]
    assert applied == {"seq": 1, "step": 1}
    assert [each["seq"] for each in generation.events("order_applied")] == [1, 2, 3]
    assert [each["seq"] for each in generation.events("order_received")] == [1, 2, 3]
    assert [each["step"] for each in generation.events("checkpoint_committed")] == [1, 6]
    assert generation.weights_sha256() == twin.weights_sha256()
    assert generation.rows()[2]["step_time_s"] < 1.0, "holding is no part of a step"


def test_a_checkpoint_order_commits_at_once(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=3)
    order = Order(seq=5, kind="checkpoint")
    with started(tmp_path, spec, plan_of(spec, **PAIR), orders=[order]) as generation:
        assert generation.join() == [0, 0, 0, 0]
    assert generation.events("order_applied") == [{"seq": 5, "step": 1}]
    assert [each["step"] for each in generation.events("checkpoint_committed")] == [1, 3]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_order_to_stop_ends_all_ranks_after_the_same_step(
    tmp_path: Path, corpus: Path, checkpoint: bool
) -> None:
    spec = tiny_spec(corpus, steps=LONG)
    with started(tmp_path, spec, plan_of(spec, **PAIR)) as generation:
        generation.wait_for(lambda: generation.rows())
        generation.tell(Order(seq=1, kind="stop", args={"checkpoint": checkpoint}))
        assert generation.join() == [0, 0, 0, 0]
    [applied] = generation.events("order_applied")
    step = applied["step"]
    assert step < LONG
    for rank in range(4):
        assert generation.events("rank_finished", rank) == [{"step": step, "ordered": True}]
        assert list(generation.rows(rank)) == list(range(1, step + 1))
    committed = [each["step"] for each in generation.events("checkpoint_committed")]
    assert committed == ([step] if checkpoint else [])


def test_a_held_run_can_be_stopped(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=LONG)
    with started(
        tmp_path, spec, plan_of(spec, **PAIR), orders=[Order(seq=1, kind="hold")]
    ) as generation:
        generation.wait_for(lambda: generation.events("order_applied"))
        generation.tell(Order(seq=2, kind="stop"))
        assert generation.join() == [0, 0, 0, 0]
    assert generation.newest().step == 1


def test_a_held_run_shows_that_it_lives(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=LONG)
    with started(
        tmp_path, spec, plan_of(spec, stages=2), orders=[Order(seq=1, kind="hold")]
    ) as generation:
        generation.wait_for(lambda: generation.events("order_applied"))
        for rank in range(2):
            pulse = generation.folder / f"rank-{rank}.pulse"
            before = pulse.stat().st_mtime_ns
            generation.wait_for(
                lambda pulse=pulse, before=before: pulse.stat().st_mtime_ns > before
            )


def test_what_cannot_be_followed_is_refused_with_a_reason(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=2)
    orders = [Order(seq=1, kind="release"), Order(seq=2, kind="hold")]
    generation = trained(tmp_path, spec, plan_of(spec), orders=orders)
    refused = {each["seq"]: each["because"] for each in generation.events("order_refused")}
    assert refused == {
        1: "the run is not held",
        2: "the run has just done its last step",
    }
