"""Emulated devices and links take their time, and never touch a number."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.distributed.ranks import plan_of, tiny_spec, trained
from trainmaster.emulation import Link
from worker.launch import Emulation


@pytest.mark.parametrize("emulation", [Emulation(layer_time_s=0.005), Emulation(speed=0.25)])
def test_an_emulated_device_takes_its_time_and_keeps_the_bits(
    tmp_path: Path, corpus: Path, emulation: Emulation
) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, stages=2)
    twin = trained(tmp_path / "twin", spec, plan)
    began = time.monotonic()
    seen = trained(tmp_path / "slow", spec, plan, emulation=dict.fromkeys(range(2), emulation))
    assert seen.weights_sha256() == twin.weights_sha256()
    if emulation.layer_time_s:
        # 8 micro-batches of 2 layers, forward once and backward twice the time.
        assert min(seen.series("compute_s")) >= 8 * 2 * 3 * 0.005 - 1e-9
        assert time.monotonic() - began > 3 * 8 * 2 * 3 * 0.005


def test_an_emulated_link_delays_what_is_sent_over_it(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, stages=2)
    [pipeline] = plan.pipelines
    placed = plan.model_copy(
        update={"pipelines": (pipeline.model_copy(update={"nodes": ("here", "there")}),)}
    )
    far = Emulation(links={"there": Link(latency_ms=15)})
    seen = trained(tmp_path / "far", spec, placed, emulation={0: far})
    near = trained(tmp_path / "near", spec, placed)
    # The first activation reaches the second stage after 15 ms; those behind it follow closely, for
    # the link carries them at the same time. Who sends is not kept.
    assert min(seen.series("p2p_wait_s", 1)) >= 0.015
    assert seen.weights_sha256() == near.weights_sha256()


def test_an_emulated_link_delays_the_sum_of_gradients(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, replicas=2)
    placed = plan.model_copy(
        update={
            "pipelines": tuple(
                pipeline.model_copy(update={"nodes": (node,)})
                for pipeline, node in zip(plan.pipelines, ("here", "there"), strict=True)
            )
        }
    )
    far = Emulation(links={"there": Link(latency_ms=30)})
    seen = trained(tmp_path, spec, placed, emulation={0: far})
    assert min(seen.series("latency_ms")) >= 60, "a ring of two sends two messages each"
