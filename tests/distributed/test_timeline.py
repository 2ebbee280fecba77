"""Timelines hold every action of every rank, whatever the layout; and the two private functions of
torch through which a pipeline's messages pass are still where we measure them.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from tests.distributed.ranks import Generation, plan_of, tiny_spec, trained
from trainmaster.layout import replica_ranks, roles
from trainmaster.orders import Order
from trainmaster.plan import Plan
from trainmaster.schedules import fused, order_of
from trainmaster.spec import TelemetrySpec
from trainmaster.timeline import COMPUTE, Timeline, decode, ratios, span_of
from worker.launch import Emulation
from worker.pipeline import timeline

LETTERS = {"forward": "F", "backward": "B", "input": "I", "weights": "W"}
AGREEMENT = 0.05
"""By how much the ratios of every step and those of its timeline may differ."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b": {"stages": 2},
    "1f1b, two passes": {"stages": 2, "sync_every": 2},
    "gpipe, replicas, zero 1": {"stages": 2, "replicas": 2, "schedule": "gpipe", "zero": 1},
    "interleaved_1f1b": {"stages": 2, "schedule": "interleaved_1f1b"},
    "looped_bfs": {"stages": 2, "schedule": "looped_bfs"},
    "interleaved_zero_bubble": {"stages": 2, "schedule": "interleaved_zero_bubble"},
    "zbv_zero_bubble, zero 2": {
        "stages": 2,
        "replicas": 2,
        "schedule": "zbv_zero_bubble",
        "zero": 2,
    },
    "dualpipev": {"stages": 2, "schedule": "dualpipev"},
    "zero 3": {"replicas": 2, "zero": 3},
    "tensor": {"stages": 2, "tensor": 2},
    "ragged": {
        "pipelines": [
            {"layers": [1, 3], "micro_batches": 5},
            {"layers": [2, 1, 1], "micro_batches": 3},
        ]
    },
}


def timelines(generation: Generation, plan: Plan) -> list[list[Timeline]]:
    """Those of each rank."""
    return [
        [decode(each) for each in generation.frames(rank).timelines]
        for rank in range(plan.world_size)
    ]


def test_torch_still_has_the_functions_that_are_replaced() -> None:
    assert list(inspect.signature(timeline._post).parameters) == ["p2p_ops", "desc"]
    assert list(inspect.signature(timeline._await).parameters) == ["work"]
    assert timeline._post.__module__ == timeline._await.__module__ == schedules.__name__


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recorded_step_holds_every_action_of_every_rank(
    tmp_path: Path, corpus: Path, layout: str
) -> None:
    spec = tiny_spec(corpus, steps=2)
    spec = spec.model_copy(update={"telemetry": TelemetrySpec(timeline_every=2)})
    plan = plan_of(spec, **LAYOUTS[layout])
    steady = dict.fromkeys(range(plan.world_size), Emulation(layer_time_s=0.01))
    seen = trained(tmp_path, spec, plan, emulation=steady)
    told = timelines(seen, plan)
    assert [[each.step for each in mine] for mine in told] == [[2]] * plan.world_size
    found = [mine for [mine] in told]
    for replica, pipeline in enumerate(plan.pipelines):
        for tensor in range(plan.tensor):
            ranks = replica_ranks(plan, replica, tensor)
            require_order([found[rank] for rank in ranks], plan, pipeline.micro_batches)
            require_messages([found[rank] for rank in ranks])
    for role, mine in zip(roles(plan), found, strict=True):
        kinds = {each.kind for each in mine.actions}
        assert {"pass", "status", "optimizer"} <= kinds
        assert ("data" in kinds) >= (role.is_first_stage or role.is_last_stage)
        assert ("reduce" in kinds) == (plan.replicas > 1 and plan.zero < 3)
        assert ("loss" in kinds) == role.is_last_stage
        assert mine.dropped == 0
        assert all(-1e6 < each.start_ns <= each.end_ns for each in mine.actions)
        assert mine.clock.error_s >= 0.0
        require_agreement(mine, found, plan, seen)


def require_order(pipeline: list[Timeline], plan: Plan, micro_batches: int) -> None:
    planned = order_of(plan.schedule, len(pipeline), plan.virtual, micro_batches)
    for mine, sequence in zip(pipeline, planned, strict=True):
        done = [
            (each.stage, LETTERS[each.kind], each.number)
            for each in mine.actions
            if each.kind in LETTERS
        ]
        expected = [
            (action.stage, str(action.kind), action.micro_batch + micro_batches * lap)
            for lap in range(plan.sync_every)
            for action in fused(sequence)
        ]
        if sorted(done) != sorted(expected):  # torch may have split what follows at once
            expected = [
                (action.stage, str(action.kind), action.micro_batch + micro_batches * lap)
                for lap in range(plan.sync_every)
                for action in sequence
            ]
        assert sorted(done) == sorted(expected)


def require_messages(pipeline: list[Timeline]) -> None:
    """What is sent is received, after it was sent, and who received it has waited for it."""
    sent, received, waited = {}, {}, set()
    for mine in pipeline:
        shift = round(mine.shift_s * 1e9)
        for each in mine.actions:
            way, _, what = each.kind.partition("_")
            step = 1 if what == "activation" else -1
            if way == "send":
                sent[what, each.stage + step, each.number] = each.start_ns + shift, mine
            elif way == "receive":
                received[what, each.stage, each.number] = each.end_ns + shift, mine
                assert each.num_bytes > 0
            elif each.kind in {"wait_activation", "wait_gradient"}:
                waited.add((what, each.stage, each.number))
    assert sent.keys() == received.keys() == waited
    assert bool(sent) == (len(pipeline) > 1)
    for key, (at, sender) in sent.items():
        arrived, receiver = received[key]
        error_ns = (sender.clock.error_s + receiver.clock.error_s) * 1e9
        assert arrived >= at - error_ns, "the clocks are aligned within what is told"


def require_agreement(mine: Timeline, found: list[Timeline], plan: Plan, seen: Generation) -> None:
    rank = found.index(mine)
    role = roles(plan)[rank]
    pipeline = [found[each] for each in replica_ranks(plan, role.replica, role.tensor)]
    span_ns = span_of(pipeline)
    assert span_ns is not None
    where, row = ratios(mine, span_ns), seen.rows(rank)[2]
    # Each step takes the passes of the first stage for the pipeline's; a timeline has all stages on
    # one clock, and so also what another was late by.
    first_ns = _spent_ns(pipeline[0], frozenset({"pass"}))
    apart = abs(1 - span_ns / first_ns)
    assert where.bubble_ratio == pytest.approx(row["bubble_ratio"], abs=AGREEMENT + apart)
    assert where.exposed_comm_ratio == pytest.approx(row["exposed_comm_ratio"], abs=AGREEMENT)
    assert where.idle_ratio == pytest.approx(row["idle_ratio"], abs=AGREEMENT)
    compute_s = _spent_ns(mine, COMPUTE) / 1e9
    assert compute_s == pytest.approx(row["compute_s"], rel=1e-6)
    alone = max(0.0, 1 - compute_s / (first_ns / 1e9))
    assert row["bubble_ratio"] == pytest.approx(alone, abs=AGREEMENT)


def _spent_ns(timeline: Timeline, kinds: frozenset[str]) -> int:
    return sum(each.end_ns - each.start_ns for each in timeline.actions if each.kind in kinds)


def test_an_order_has_the_next_step_recorded_and_a_checkpoint_before_it_is_part_of_it(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=4)
    plan = plan_of(spec, stages=2)
    orders = [Order(seq=1, kind="checkpoint"), Order(seq=2, kind="timeline")]
    seen = trained(tmp_path, spec, plan, orders=orders, checkpoint_every=2)
    applied = {each["seq"]: each["step"] for each in seen.events("order_applied")}
    told = timelines(seen, plan)
    assert [[each.step for each in mine] for mine in told] == [[applied[2] + 1]] * 2
    saved = applied[2] % 2 == 0
    for [mine] in told:
        assert ("checkpoint" in {each.kind for each in mine.actions}) == saved
    bits = trained(tmp_path / "plain", spec, plan)
    assert seen.weights_sha256() == bits.weights_sha256()
