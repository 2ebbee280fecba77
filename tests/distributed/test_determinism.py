"""Which bits stay the same: on repetition, after a resume, and, where it is asked for, in any
layout; what layers draw included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import TINY, plan_of, started, tiny_spec, trained
from trainmaster.errors import ExitCode
from trainmaster.spec import RunSpec
from worker.launch import SlotDevice


def spec_of(corpus: Path, **train: Any) -> RunSpec:
    """With dropout, and a batch that micro-batches of two do not divide."""
    told = tiny_spec(corpus, global_batch=15).model_dump(mode="json")
    return RunSpec.model_validate(
        {
            **told,
            "params": {**TINY, "dropout": 0.1},
            "train": {**told["train"], **train},
            "parallel": {"micro_batch": 2},
        }
    )


ANY_LAYOUT: list[dict[str, Any]] = [
    {},
    {
        "replicas": 2,
        "shares": [3, 5],
        "stages": 2,
        "schedule": "zbv_zero_bubble",
        "bucket_mb": 0.01,
    },
    {"replicas": 4, "offload": "optimizer"},
    {
        "pipelines": [
            {"layers": [1, 3], "micro_batches": 5},
            {"layers": [4], "micro_batches": 2},
            {"layers": [1, 3], "micro_batches": 1},
        ],
        "schedule": "gpipe",
        "recompute": "full",
    },
]


def test_ordered_sums_give_any_layout_the_same_bits(tmp_path: Path, corpus: Path) -> None:
    spec = spec_of(corpus, steps=3, determinism="layout")
    seen = [
        trained(tmp_path / str(number), spec, plan_of(spec, **{"sync_every": 2, **ask}))
        for number, ask in enumerate(ANY_LAYOUT)
    ]
    for metric in ("loss", "grad_norm"):
        assert len({tuple(each.series(metric)) for each in seen}) == 1
    assert len({each.weights_sha256() for each in seen}) == 1


def test_what_layers_draw_is_the_same_again_after_a_resume_and_on_any_cut(
    tmp_path: Path, corpus: Path
) -> None:
    spec, short = spec_of(corpus), spec_of(corpus, steps=2)
    plan = plan_of(spec, replicas=2, stages=2)
    straight = trained(tmp_path / "straight", spec, plan)
    again = trained(tmp_path / "again", spec, plan_of(spec, replicas=2, recompute="selective"))
    first = trained(tmp_path / "cut", short, plan, checkpoint_every=2)
    second = trained(tmp_path / "cut", spec, plan, generation=2, resume=first.newest())
    assert second.series("loss") == straight.series("loss")[2:]
    assert {each.weights_sha256() for each in (straight, again, second)} == {
        straight.weights_sha256()
    }
    told = tiny_spec(corpus, global_batch=15)
    without = trained(tmp_path / "without", told, plan_of(told, replicas=2, stages=2))
    assert without.series("loss") != straight.series("loss"), "something was dropped"


def test_a_sum_over_other_micro_batches_would_have_other_bits(tmp_path: Path, corpus: Path) -> None:
    spec = spec_of(corpus, steps=2, determinism="layout")
    first = trained(tmp_path, spec, plan_of(spec))
    other = plan_of(spec, micro_batch=3)
    with started(tmp_path, spec, other, generation=2, resume=first.newest()) as generation:
        assert set(generation.join()) == {ExitCode.BAD_SPEC}
    [failed] = generation.events("rank_failed")
    assert "parallel.micro_batch" in failed["because"]


def test_devices_of_several_kinds_promise_no_bits(tmp_path: Path, corpus: Path) -> None:
    spec = spec_of(corpus, determinism="layout")
    devices = (SlotDevice(kind="emu-a"), SlotDevice(kind="emu-b"))
    with started(tmp_path, spec, plan_of(spec, stages=2), devices=devices) as generation:
        assert set(generation.join()) == {ExitCode.BAD_SPEC}
    [failed] = generation.events("rank_failed")
    assert "train.determinism: 'layout' needs devices of one kind" in failed["because"]


@pytest.mark.parametrize(
    ("parallel", "because"),
    [
        ("auto", "needs a micro_batch of your own"),
        ({"replicas": 2}, "needs a micro_batch of your own"),
        ({"micro_batch": 2, "zero": 1}, "needs zero 0, not 1"),
        ({"micro_batch": 2, "tensor": 2}, "needs tensor 1, not 2"),
    ],
)
def test_where_bits_cannot_be_promised_it_is_refused_by_name(
    corpus: Path, parallel: Any, because: str
) -> None:
    told = spec_of(corpus, determinism="layout").model_dump(mode="json")
    with pytest.raises(ValueError, match=because):
        RunSpec.model_validate({**told, "parallel": parallel})


def test_sums_that_depend_on_the_layout_are_refused_where_its_bits_are_promised(
    corpus: Path,
) -> None:
    with pytest.raises(ValueError, match="'layout' needs gradient_sums float64, not float32"):
        spec_of(corpus, determinism="layout", gradient_sums="float32")
