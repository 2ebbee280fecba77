"""What replicas share and how it travels never shows in the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import Generation, plan_of, started, tiny_spec, trained
from tests.distributed.test_matrix import compare, plain_loop
from trainmaster import plugins, timeline
from trainmaster.errors import ExitCode
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from trainmaster.schedules import KNOWN
from trainmaster.spec import RunSpec, TelemetrySpec

FOUR = {"replicas": 4, "micro_batch": 1, "shares": [7, 1, 5, 3]}


def test_no_size_of_buckets_and_no_sharing_changes_a_bit(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus)
    asks: list[dict[str, Any]] = [
        {},
        {"bucket_mb": 0.001},
        {"bucket_mb": 0.05, "zero": 1},
        {"bucket_mb": 0.05, "zero": 2, "offload": "optimizer"},
    ]
    seen = [
        trained(tmp_path / str(n), spec, plan_of(spec, **FOUR, **a)) for n, a in enumerate(asks)
    ]
    assert len({each.weights_sha256() for each in seen}) == 1
    assert len({tuple(each.series("grad_norm")) for each in seen[:3]}) == 1
    for each in seen:
        assert min(each.series("allreduce_hidden_s")) > 0, "buckets leave before the pass has ended"


@pytest.mark.parametrize(("ramp", "passes"), [(0, [3, 3, 3, 3]), (3, [1, 2, 3, 3])])
def test_a_step_of_several_passes_equals_one_of_as_large_a_batch(
    tmp_path: Path, corpus: Path, ramp: int, passes: list[int]
) -> None:
    optimizer = {"lr": 1e-3, "grad_clip": 1.0, "base_batch": 16, "lr_scaling": "sqrt"}
    ask = {"replicas": 2, "stages": 2, "schedule": "zbv_zero_bubble", "zero": 1, "sync_every": 3}
    told = tiny_spec(corpus, optimizer=optimizer).model_dump(mode="json")
    told["train"]["batch_ramp_steps"] = ramp
    spec = RunSpec.model_validate({**told, "parallel": ask})
    plan = plan_of(spec, **ask, micro_batch=1, shares=[9, 7])
    seen = trained(tmp_path, spec, plan)
    compare(seen, plain_loop(spec, micro_batch=1, sync_every=3), bitwise=True)
    assert seen.series("tokens") == [each * 16 * 32 for each in passes]
    assert seen.series("lr") == pytest.approx([1e-3 * each**0.5 for each in passes])
    if ramp:
        return
    with started(
        tmp_path,
        spec,
        plan.model_copy(update={"sync_every": 1}),
        generation=2,
        resume=seen.newest(),
    ) as generation:
        codes = generation.join()
    assert set(codes) == {ExitCode.BAD_SPEC}
    [failed] = generation.events("rank_failed")
    assert "taken with 3;" in failed["because"]


STRAIGHT = {"replicas": 2, "stages": 2, "micro_batch": 1, "shares": [10, 6]}
ALONE = {"replicas": 1, "shares": [16]}
SHARED: dict[str, Any] = {"schedule": "zbv_zero_bubble", "zero": 2, "offload": "optimizer"}
RAGGED: dict[str, Any] = {
    "replicas": 1,
    "stages": 1,
    "shares": None,
    "zero": 1,
    "pipelines": [
        {"layers": [1, 1, 2], "micro_batches": 10},
        {"layers": [3, 1], "micro_batches": 6},
    ],
}
SPREAD: dict[str, Any] = {"stages": 1, "zero": 1, "tensor": 2}
SPLIT: dict[str, Any] = {**ALONE, "schedule": "interleaved_zero_bubble", "tensor": 2}
DIVIDED: dict[str, Any] = {"schedule": "looped_bfs", "zero": 3, "shares": [8, 8]}


@pytest.mark.parametrize(
    ("saver", "others"),
    [
        (SHARED, [{**ALONE, "stages": 4}, RAGGED]),
        (SPREAD, [SPLIT, DIVIDED]),
        (DIVIDED, [{**ALONE, "stages": 1}]),
    ],
    ids=["shared", "spread", "divided"],
)
def test_what_one_layout_saves_every_other_goes_on_from(
    tmp_path: Path, corpus: Path, saver: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    spec, short = tiny_spec(corpus, steps=5), tiny_spec(corpus, steps=3)
    straight = plain_loop(spec, micro_batch=1)
    first = trained(tmp_path, short, plan_of(spec, **{**STRAIGHT, **saver}), checkpoint_every=3)
    seen = [
        trained(
            tmp_path,
            spec,
            plan_of(spec, **{**STRAIGHT, **ask}),
            generation=generation,
            resume=first.newest(),
        )
        for generation, ask in enumerate([saver, *others], start=2)
    ]
    for each in seen:
        if saver is not SHARED:
            assert each.series("loss") == pytest.approx(straight.losses[3:], rel=1e-5)
        else:
            assert each.weights_sha256() == straight.sha256


def padded_spec() -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "padded",
            "workload": "tests.distributed.padded:workload",
            "train": {"steps": 3, "global_batch": 32, "optimizer": {"lr": 0.01, "grad_clip": 0.5}},
        }
    )


@pytest.mark.parametrize(
    "ask",
    [
        {"replicas": 2, "stages": 2, "shares": [20, 12], "zero": 2, "schedule": "dualpipev"},
        {"replicas": 4, "shares": [1, 1, 1, 29]},
        {
            "pipelines": [
                {"layers": [1, 1, 1, 1], "micro_batches": 18},
                {"layers": [2, 2], "micro_batches": 14},
            ]
        },
    ],
    ids=["zero", "uneven", "ragged"],
)
def test_padding_counts_by_its_true_weight_and_a_batch_may_lie_in_two_epochs(
    tmp_path: Path, ask: dict[str, Any]
) -> None:
    spec = padded_spec()
    parallel = ParallelAsk.model_validate({"micro_batch": 1, **ask})
    plan = resolve(parallel, num_layers=4, global_batch=32)
    seen = trained(tmp_path, spec, plan)
    # The fused AdamW treats the last few values of a tensor by themselves, and may round them
    # otherwise: with ZeRO a tensor ends where a part does.
    compare(seen, plain_loop(spec, micro_batch=1), bitwise="zero" not in ask)
    assert len(set(seen.series("tokens"))) > 1, "weights differ from step to step"


def test_a_workload_that_brings_its_optimizer_is_not_given_parts(tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "name": "digits",
            "workload": "tests.distributed.digits:workload",
            "params": {"momentum": True},
            "train": {"steps": 2, "global_batch": 12},
        }
    )
    plan = resolve(ParallelAsk(replicas=2, zero=1, micro_batch=2), num_layers=3, global_batch=12)
    with started(tmp_path, spec, plan) as generation:
        codes = generation.join()
    assert set(codes) == {ExitCode.BAD_SPEC}
    [failed] = generation.events("rank_failed")
    assert "brings its own optimizer" in failed["because"]


MINE = """
from trainmaster.schedules import Schedule
from trainmaster.sequences import Action, Kind


def last_in_first_out(ranks, virtual, micro_batches):
    return tuple(
        (
            *(Action(rank, Kind.FORWARD, m) for m in range(micro_batches)),
            *(Action(rank, Kind.BACKWARD, m) for m in reversed(range(micro_batches))),
        )
        for rank in range(ranks)
    )


SCHEDULE = Schedule("last_in_first_out", last_in_first_out)
"""


def test_a_schedule_of_a_third_party_is_data_that_ranks_run(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    (installed / "lifo-1.0.dist-info").mkdir(parents=True)
    (installed / "lifo_schedule.py").write_text(MINE)
    (installed / "lifo-1.0.dist-info" / "METADATA").write_text("Name: lifo\nVersion: 1.0\n")
    (installed / "lifo-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{plugins.SCHEDULE_GROUP}]\nlifo = lifo_schedule:SCHEDULE\n"
    )
    monkeypatch.syspath_prepend(installed)
    plugins.add_schedules()
    try:
        spec = tiny_spec(corpus).model_copy(update={"telemetry": TelemetrySpec(timeline_every=4)})
        ask = {"schedule": "last_in_first_out", "replicas": 2, "stages": 2, "shares": [10, 6]}
        seen = trained(tmp_path / "run", spec, plan_of(spec, **ask, micro_batch=1, zero=2))
    finally:
        del KNOWN["last_in_first_out"]
    compare(seen, plain_loop(spec, micro_batch=1), bitwise=True)
    [recorded] = seen.frames(0).timelines
    forwards = [each for each in timeline.decode(recorded).actions if each.kind == "forward"]
    assert sorted(each.number for each in forwards) == list(range(10))


def failures_of(generation: Generation) -> list[str]:
    return [event["because"] for event in generation.events("rank_failed")]


def test_tensors_are_spread_only_where_the_workload_says_how(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus)
    with started(tmp_path, spec, plan_of(spec, tensor=4)) as generation:
        assert set(generation.join()) == {ExitCode.BAD_SPEC}
    assert "4 ranks cannot share 2 units evenly; 2 would fit" in failures_of(generation)[0]
