"""Statuses that stay on the device for a step: the same decisions and bits, told one step later.
Forced here with tensors on the CPU; a CUDA device does so by itself (docs/gpu.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from trainmaster.orders import Drill, Order
from worker.launch import SlotDevice

AHEAD = SlotDevice(runs_ahead=True)


@pytest.mark.parametrize(
    "ask",
    [
        {"replicas": 2, "stages": 2},
        {"replicas": 2, "zero": 2, "shares": [5, 3]},
        {"tensor": 2},
        {"replicas": 2, "zero": 3},
    ],
    ids=str,
)
def test_it_has_the_bits_of_one_that_waits_also_over_a_skipped_step(
    tmp_path: Path, corpus: Path, ask: dict[str, Any]
) -> None:
    spec = tiny_spec(corpus, steps=6)
    plan = plan_of(spec, **ask)
    drills = [Drill(id=1, fault="nan", rank=plan.world_size - 1, at_step=3, steps=1)]
    waits = trained(tmp_path / "waits", spec, plan, drills=drills)
    late = trained(tmp_path / "late", spec, plan, drills=drills, devices=[AHEAD] * plan.world_size)
    for metric in ("applied", "loss", "lr", "tokens"):
        expected = waits.series(metric)
        assert late.series(metric) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert late.series("applied") == [1, 1, 0, 1, 1, 1]
    assert late.series("grad_norm") == pytest.approx(
        waits.series("grad_norm"), rel=1e-12, nan_ok=True
    )
    [skipped] = late.events("step_skipped")
    assert (skipped["step"], skipped["ranks"]) == (3, waits.events("step_skipped")[0]["ranks"])
    assert late.weights_sha256() == waits.weights_sha256()


def test_orders_are_followed_one_step_later_and_none_is_lost(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=6)
    plan = plan_of(spec, stages=2)
    orders = [
        Order(seq=1, kind="checkpoint"),
        Order(seq=2, kind="hold"),
        Order(seq=3, kind="release"),
        Order(seq=4, kind="stop"),
    ]
    with started(tmp_path, spec, plan, orders=orders, devices=[AHEAD] * 2) as generation:
        assert generation.join() == [0, 0]
    applied = [(each["seq"], each["step"]) for each in generation.events("order_applied")]
    assert [seq for seq, _ in applied] == [1, 2, 3, 4]
    assert applied[0] == (1, 2), "told in step 1, followed after the next one"
    [finished] = generation.events("rank_finished")
    assert finished["ordered"]
    assert generation.newest().step == finished["step"] == list(generation.rows())[-1]


def test_a_resumed_one_goes_on_with_the_same_bits(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=6)
    plan = plan_of(spec, replicas=2)
    straight = trained(tmp_path / "straight", spec, plan)
    ahead = [AHEAD] * 2
    first = trained(
        tmp_path / "cut", tiny_spec(corpus, steps=3), plan, devices=ahead, checkpoint_every=2
    )
    second = trained(
        tmp_path / "cut", spec, plan, generation=2, resume=first.newest(), devices=ahead
    )
    assert second.weights_sha256() == straight.weights_sha256()
