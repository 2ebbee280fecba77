"""Ranks take checkpoints as often as what they measure asks for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.distributed.ranks import plan_of, tiny_spec, trained

STEPS = 30


def test_the_interval_follows_what_was_measured_from_a_step_that_is_told(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=STEPS)
    run = trained(tmp_path, spec, plan_of(spec, replicas=2), checkpoint_every=2, mtbf_s=1e9)
    chosen = run.events("interval_chosen")
    assert chosen[0]["before"] == 2
    assert chosen[0]["every_steps"] >= 10, "a failure is hardly to be expected"
    assert "(Daly 2006)" in chosen[0]["because"]
    steps = [each["step"] for each in run.events("checkpoint_committed")]
    every = {told["step"]: told["every_steps"] for told in chosen}
    interval = 2
    for before, after in pairwise([0, *steps]):
        interval = every.get(before, interval)
        assert after == min(before + interval, STEPS)
    assert steps[-1] == STEPS


def test_an_interval_that_was_asked_for_stays(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=6)
    run = trained(tmp_path, spec, plan_of(spec), checkpoint_every=2)
    assert [each["step"] for each in run.events("checkpoint_committed")] == [2, 4, 6]
    assert run.events("interval_chosen") == []
