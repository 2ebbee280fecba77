"""A batch that micro-batches do not divide: the last one is filled up, and what fills it counts for
nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import trained
from tests.distributed.test_matrix import SGD, compare, plain_loop
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec


def spec_of(workload: str, *, layers: int, **train: Any) -> tuple[RunSpec, int]:
    spec = RunSpec.model_validate(
        {
            "name": "short",
            "workload": f"tests.distributed.{workload}:workload",
            "params": {"samples": 101} if workload == "digits" else {},
            "train": {"steps": 4, "global_batch": 10, "optimizer": SGD, **train},
        }
    )
    return spec, layers


@pytest.mark.parametrize(
    ("workload", "layers", "ask"),
    [
        ("digits", 3, {"micro_batch": 4}),
        ("digits", 3, {"micro_batch": 3, "replicas": 2, "stages": 2}),
        ("padded", 4, {"micro_batch": 4, "replicas": 2, "shares": [1, 2], "zero": 2}),
        ("padded", 4, {"micro_batch": 3, "replicas": 2, "zero": 3, "schedule": "gpipe"}),
        (
            "padded",
            4,
            {
                "micro_batch": 3,
                "schedule": "gpipe",
                "pipelines": [
                    {"layers": [1, 1, 2], "micro_batches": 3},
                    {"layers": [3, 1], "micro_batches": 1},
                ],
            },
        ),
        ("padded", 4, {"micro_batch": 4, "stages": 2, "schedule": "zbv_zero_bubble"}),
    ],
    ids=["one", "even", "uneven", "divided", "ragged", "split"],
)
def test_a_short_micro_batch_counts_its_samples_alone(
    tmp_path: Path, workload: str, layers: int, ask: dict[str, Any]
) -> None:
    spec, num_layers = spec_of(workload, layers=layers)
    plan = resolve(ParallelAsk.model_validate(ask), num_layers=num_layers, global_batch=10)
    seen = trained(tmp_path, spec, plan)
    compare(seen, plain_loop(spec, micro_batch=plan.micro_batch), bitwise=False)


def test_a_run_over_an_odd_number_of_samples_ends_by_itself_having_seen_what_was_asked(
    tmp_path: Path,
) -> None:
    spec, num_layers = spec_of("digits", layers=3, steps=21)
    ask = ParallelAsk(replicas=2, micro_batch=2, shares=[2, 3])
    seen = trained(tmp_path, spec, resolve(ask, num_layers=num_layers, global_batch=10))
    assert seen.series("tokens") == [10.0] * 21, "a batch goes over the end into the next epoch"
    assert sum(seen.series("applied")) == 21
