"""Ranks that are stuck, as their agent sees them: who waits, who does not, and where they stand."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.distributed.ranks import Generation, plan_of, started, tiny_spec
from trainmaster.home import identity
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.wire import Pulse
from worker.agent import pulses, stacks
from worker.agent.records import RankRecord
from worker.reporting.pulsefile import STACKS_SUFFIX

LATER = 1e9
"""An instant from which every rank has stood still for long enough to be told of."""


def pid_of(generation: Generation, rank: int) -> int:
    pid = generation.processes[rank].pid
    assert pid is not None
    return pid


def pulse(generation: Generation, rank: int) -> Pulse:
    spool = generation.folder / f"rank-{rank}.spool"
    seen = pulses.look(spool, pid_of(generation, rank), now=LATER)
    assert seen is not None
    return seen


def is_at(generation: Generation, rank: int, activity: str, step: int) -> bool:
    if not (generation.folder / f"rank-{rank}.pulse").exists():
        return False
    seen = pulse(generation, rank)
    return (seen.activity, seen.section, seen.step) == (activity, "step", step)


def test_a_rank_in_an_endless_loop_computes_while_the_other_waits(tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "name": "loops",
            "workload": "tests.distributed.looping:workload",
            "train": {"steps": 100, "global_batch": 16, "optimizer": {"lr": 0.01}},
        }
    )
    ask = ParallelAsk(replicas=2, micro_batch=2)
    plan = resolve(ask, num_layers=2, global_batch=16)
    with started(tmp_path, spec, plan) as generation:
        # Four micro-batches a step: the ninth forward is in the third step.
        generation.wait_for(lambda: is_at(generation, 1, "compute", 3))
        generation.wait_for(lambda: is_at(generation, 0, "wait", 3))
        assert not pulse(generation, 1).frozen
        pid = pid_of(generation, 1)
        record = RankRecord(run="r1", generation=1, rank=1, slot=1, replica=1, stage=0, pid=pid)
        record = record.model_copy(update={"started": identity(pid) or ""})
        written = (generation.folder / "rank-1.spool").with_suffix(STACKS_SUFFIX)
        assert "loop_for_ever" in stacks.when_asked(record, written)
        seen = stacks.take(record, written)
        assert seen.how in {"py-spy", "faulthandler"}, seen.because
        assert "loop_for_ever" in seen.text


def test_a_stopped_rank_is_frozen_and_the_others_wait(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=100_000)
    with started(tmp_path, spec, plan_of(spec, stages=2)) as generation:
        generation.wait_for(lambda: len(generation.rows()) > 3)
        os.kill(pid_of(generation, 1), signal.SIGSTOP)
        generation.wait_for(lambda: pulse(generation, 1).frozen)
        generation.wait_for(lambda: pulse(generation, 0).activity == "wait")
        assert not pulse(generation, 0).frozen
