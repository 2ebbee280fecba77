"""What the runtime promises to somebody's own workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import started, trained
from trainmaster.errors import ExitCode
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec


def spec_of(steps: int, **params: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "digits",
            "workload": "tests.distributed.digits:workload",
            "params": params,
            "train": {"steps": steps, "global_batch": 12, "optimizer": {"lr": 0.01}},
        }
    )


def plan_of(**ask: Any) -> Plan:
    parallel = ParallelAsk.model_validate({"micro_batch": 2, **ask})
    return resolve(parallel, num_layers=3, global_batch=12)


def test_it_learns_and_splits_like_the_built_in_one(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", spec_of(12), plan_of())
    losses = one.series("loss")
    assert losses[-1] < 0.8 * losses[0]
    for name, ask in {"pipe": {"stages": 3}, "both": {"replicas": 2, "stages": 2}}.items():
        seen = trained(tmp_path / name, spec_of(12), plan_of(**ask))
        assert seen.series("loss") == pytest.approx(losses, rel=1e-4)
    assert one.series("tokens") == [12] * 12


def test_what_it_draws_is_drawn_again_after_a_restart(tmp_path: Path) -> None:
    plan = plan_of(replicas=2, stages=2)
    straight = trained(tmp_path / "straight", spec_of(6, dropout=0.5), plan)
    first = trained(tmp_path / "cut", spec_of(3, dropout=0.5), plan)
    second = trained(
        tmp_path / "cut", spec_of(6, dropout=0.5), plan, generation=2, resume=first.newest()
    )
    assert second.series("loss") == straight.series("loss")[3:]
    assert second.weights_sha256() == straight.weights_sha256()
    without = trained(tmp_path / "without", spec_of(6), plan)
    assert without.series("loss") != straight.series("loss"), "dropout does something"


def test_its_own_optimizer_is_used_and_survives_a_restart(tmp_path: Path) -> None:
    plan = plan_of(stages=2)
    straight = trained(tmp_path / "straight", spec_of(6, momentum=True), plan)
    assert straight.series("lr") == [0.5] * 6
    first = trained(tmp_path / "cut", spec_of(3, momentum=True), plan)
    second = trained(
        tmp_path / "cut", spec_of(6, momentum=True), plan, generation=2, resume=first.newest()
    )
    assert second.weights_sha256() == straight.weights_sha256()


def test_a_layer_that_changes_its_shape_is_named_with_what_was_expected(tmp_path: Path) -> None:
    spec = spec_of(2).model_copy(update={"workload": "tests.distributed.shrinking:workload"})
    plan = plan_of(stages=2, layers=[[0, 2], [2, 3]])
    with started(tmp_path, spec, plan) as generation:
        codes = generation.join()
    assert codes[0] == ExitCode.BAD_SPEC
    [failed] = generation.events("rank_failed")
    assert "layer 1 gives torch.float32 [2, 7], but torch.float32 [2, 8]" in failed["because"]
