"""Half the bits in matrix products, and the optimizers of a spec: like a plain loop that does the
same.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from tests.distributed.test_matrix import compare, plain_loop
from trainmaster.errors import ExitCode
from trainmaster.orders import Drill
from trainmaster.plan import ParallelAsk

UNEVEN = {"replicas": 2, "stages": 2, "micro_batch": 1, "shares": [10, 6]}


@pytest.mark.parametrize(
    ("precision", "ask"),
    [
        ("bf16", {"schedule": "zbv_zero_bubble", "zero": 2}),
        ("fp16", {"schedule": "1f1b", "zero": 1, "sync_every": 2}),
    ],
    ids=["bf16", "fp16"],
)
def test_reduced_precision_trains_like_one_process(
    tmp_path: Path, corpus: Path, precision: str, ask: dict[str, Any]
) -> None:
    spec = tiny_spec(corpus, precision=precision)
    seen = trained(tmp_path, spec, plan_of(spec, **UNEVEN, **ask))
    passes = ask.get("sync_every", 1)
    compare(seen, plain_loop(spec, micro_batch=1, sync_every=passes), bitwise=True)
    exact = plain_loop(tiny_spec(corpus), micro_batch=1, sync_every=passes)
    assert seen.series("loss") == pytest.approx(exact.losses, rel=1e-3)
    assert seen.series("loss") != exact.losses, "something was computed in fewer bits"


def test_a_loss_scale_that_is_too_large_costs_no_step_and_is_saved(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=6, precision="fp16")
    plan = plan_of(spec, stages=2)
    straight = trained(tmp_path / "straight", spec, plan)
    [lowered] = straight.events("loss_scale_lowered")
    assert lowered["before"] == 2.0**16, "gradients of a sum of losses overflow at once"
    assert lowered["step"] == 1
    assert straight.series("applied") == [1.0] * 6
    assert straight.series("non_finite") == [0.0] * 6
    first = trained(
        tmp_path / "cut", tiny_spec(corpus, steps=3, precision="fp16"), plan, checkpoint_every=3
    )
    second = trained(tmp_path / "cut", spec, plan, generation=2, resume=first.newest())
    assert not second.events("loss_scale_lowered"), "what was found is kept"
    assert second.weights_sha256() == straight.weights_sha256()


def test_what_no_scale_mends_is_skipped_and_the_scale_stays(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, precision="fp16")
    drill = Drill(id=1, fault="nan", rank=1, at_step=3, steps=1)
    seen = trained(tmp_path, spec, plan_of(spec, stages=2), drills=[drill])
    assert seen.series("applied") == [1.0, 1.0, 0.0, 1.0]
    assert math.isnan(seen.series("grad_norm")[2])
    assert [each["step"] for each in seen.events("loss_scale_lowered")] == [1]
    assert [each["step"] for each in seen.events("step_skipped")] == [3]


def test_tensors_may_be_spread_in_reduced_precision(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, precision="bf16")
    seen = trained(tmp_path, spec, plan_of(spec, tensor=2, stages=2))
    assert seen.series("loss") == pytest.approx(plain_loop(spec, micro_batch=2).losses, rel=1e-3)


def test_adafactor_trains_like_one_process_and_survives_a_restart_on_another_layout(
    tmp_path: Path, corpus: Path
) -> None:
    optimizer = {"name": "adafactor", "lr": 0.02, "grad_clip": 1.0}
    spec = tiny_spec(corpus, steps=5, optimizer=optimizer)
    short = tiny_spec(corpus, steps=3, optimizer=optimizer)
    plan = plan_of(spec, **UNEVEN, schedule="dualpipev", offload="optimizer")
    first = trained(tmp_path, short, plan, checkpoint_every=3)
    second = trained(tmp_path, spec, plan_of(spec, stages=4), generation=2, resume=first.newest())
    reference = plain_loop(spec, micro_batch=1)
    assert second.series("loss") == pytest.approx(reference.losses[3:], rel=1e-6)
    shared = resolve_anyway(plan_of(spec, replicas=2), zero=1)
    with started(tmp_path / "shared", spec, shared) as generation:
        assert set(generation.join()) == {ExitCode.BAD_SPEC}
    assert "adafactor would see only a part" in generation.events("rank_failed")[0]["because"]


def resolve_anyway(plan: Any, **changes: Any) -> Any:
    return plan.model_copy(update=changes)


def test_adafactor_with_parts_of_parameters_is_refused_with_the_spec(corpus: Path) -> None:
    spec = tiny_spec(corpus, optimizer={"name": "adafactor"}).model_dump(mode="json")
    for asked in ({"zero": 1}, {"tensor": 2}):
        with pytest.raises(ValueError, match="adafactor keeps statistics over whole rows"):
            type(tiny_spec(corpus)).model_validate({**spec, "parallel": ParallelAsk(**asked)})
