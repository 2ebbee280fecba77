"""Emulated devices and links take their time, and never touch a number."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from trainmaster.emulation import Drift, Failure, Link
from trainmaster.plan import Plan
from trainmaster.spec import TelemetrySpec
from trainmaster.timeline import decode
from worker.launch import Emulation

UNSTEADY = Emulation(layer_time_s=0.002, jitter=0.5, drift=Drift(at_step=2, speed=0.5), seed=3)


@pytest.mark.parametrize(
    "emulation", [Emulation(layer_time_s=0.005), Emulation(speed=0.25), UNSTEADY]
)
def test_an_emulated_device_takes_its_time_and_keeps_the_bits(
    tmp_path: Path, corpus: Path, emulation: Emulation
) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, stages=2)
    twin = trained(tmp_path / "twin", spec, plan)
    began = time.monotonic()
    seen = trained(tmp_path / "slow", spec, plan, emulation=dict.fromkeys(range(2), emulation))
    assert seen.weights_sha256() == twin.weights_sha256()
    if emulation is not UNSTEADY and emulation.layer_time_s:
        # 8 micro-batches of 2 layers, forward once and backward twice the time.
        assert min(seen.series("compute_s")) >= 8 * 2 * 3 * 0.005 - 1e-9
        assert time.monotonic() - began > 3 * 8 * 2 * 3 * 0.005


def test_an_emulated_link_delays_what_is_sent_over_it(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = apart(plan_of(spec, stages=2))
    far = Emulation(links={"there": Link(latency_ms=15)})
    seen = trained(tmp_path / "far", spec, plan, emulation={0: far})
    near = trained(tmp_path / "near", spec, plan)
    # The first activation reaches the second stage after 15 ms; those behind it follow closely, for
    # the link carries them at the same time. Who sends is not kept.
    assert min(seen.series("p2p_wait_s", 1)) >= 0.015
    assert seen.weights_sha256() == near.weights_sha256()


def test_messages_are_on_an_emulated_link_together(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=2)
    spec = spec.model_copy(update={"telemetry": TelemetrySpec(timeline_every=2)})
    plan = apart(plan_of(spec, stages=2, schedule="gpipe"))
    far = Emulation(links={"there": Link(latency_ms=200)})
    seen = trained(tmp_path, spec, plan, emulation={0: far})
    sender, receiver = (decode(seen.frames(rank).timelines[0]) for rank in range(2))
    sent = [each.start_ns for each in sender.actions if each.kind == "send_activation"]
    shift_ns = round((receiver.shift_s - sender.shift_s) * 1e9)
    [first] = [
        each.end_ns + shift_ns
        for each in receiver.actions
        if (each.kind, each.number) == ("receive_activation", 0)
    ]
    error_ns = receiver.clock.error_s * 1e9
    assert first >= sent[0] + 200e6 - error_ns
    assert sum(each < first for each in sent) > 1, "the second left before the first arrived"


def test_a_device_that_fails_kills_its_ranks_and_is_repaired_later(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, replicas=2)
    failing = {1: Emulation(failure=Failure(at_step=2))}
    with started(tmp_path, spec, plan, emulation=failing) as generation:
        codes = generation.join()
    assert codes[1] == -signal.SIGKILL
    assert generation.events("device_failed", 1) == [{"step": 2, "how": "kill"}]
    later = trained(tmp_path, spec, plan, generation=2, emulation=failing)
    assert later.events("device_failed", 1) == []


def test_an_emulated_link_delays_the_sum_of_gradients(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = apart(plan_of(spec, replicas=2))
    far = Emulation(layer_time_s=0.01, links={"there": Link(latency_ms=30)})
    seen = trained(tmp_path, spec, plan, emulation={0: far})
    assert min(seen.series("latency_ms")) >= 60, "a ring of two sends two messages each"
    computed_s = 4 * 4 * 3 * 0.01  # micro-batches of 4 layers, forward and backward
    assert min(seen.series("step_time_s")) >= computed_s + 0.06, "none left before it was computed"


@pytest.mark.parametrize(
    ("ask", "laps"),
    [
        # A layer is gathered before its forward, and its gradients are scattered.
        ({"replicas": 2, "zero": 3}, 2),
        # Its two blocks are summed in the forward, and what goes into them in the backward.
        ({"tensor": 2}, 8),
    ],
)
def test_an_emulated_link_delays_what_torch_exchanges_for_each_layer(
    tmp_path: Path, corpus: Path, ask: dict[str, int], laps: int
) -> None:
    spec = tiny_spec(corpus, steps=2)
    plan = apart(plan_of(spec, **ask))
    near = trained(tmp_path / "near", spec, plan)
    far = Emulation(links={"there": Link(latency_ms=3)})
    seen = trained(tmp_path / "far", spec, plan, emulation={0: far})
    layers = plan.pipelines[0].micro_batches * plan.num_layers
    assert min(seen.series("compute_s")) >= layers * laps * 0.003
    assert seen.weights_sha256() == near.weights_sha256()


def apart(plan: Plan) -> Plan:
    """A plan of two ranks, on two nodes."""
    homes = iter(("here", "there"))
    pipelines = [
        each.model_copy(
            update={"nodes": tuple(next(homes) for _ in range(plan.world_size // plan.replicas))}
        )
        for each in plan.pipelines
    ]
    return plan.model_copy(update={"pipelines": tuple(pipelines)})
