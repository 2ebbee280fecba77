"""The two private functions of torch through which a pipeline's messages pass are still where we
measure them.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from torch.distributed.pipelining import schedules

from tests.distributed.ranks import plan_of, tiny_spec, trained
from worker import timeline


def test_torch_still_has_the_functions_that_are_replaced() -> None:
    assert list(inspect.signature(timeline._post).parameters) == ["p2p_ops", "desc"]
    assert list(inspect.signature(timeline._await).parameters) == ["work"]
    assert timeline._post.__module__ == timeline._await.__module__ == schedules.__name__


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_pipeline_waits_through_them_and_a_single_stage_does_not(
    tmp_path: Path, corpus: Path, schedule: str
) -> None:
    spec = tiny_spec(corpus, steps=2)
    two = trained(tmp_path / "two", spec, plan_of(spec, stages=2, schedule=schedule))
    for rank in range(2):
        assert min(two.series("p2p_wait_s", rank)) > 0, "torch bypasses the measured functions"
        assert min(two.series("compute_s", rank)) > 0, "torch bypasses the measured stage"
    one = trained(tmp_path / "one", spec, plan_of(spec, schedule=schedule))
    assert one.series("p2p_wait_s") == [0, 0]
    assert min(one.series("compute_s")) > 0
