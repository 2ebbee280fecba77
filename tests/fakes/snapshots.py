"""Builds snapshots for tests of the brain; `tests.fakes.ring` applies decisions to them.

The cast: run *alpha* (2 replicas of 2 stages), nodes *oak* and *elm*, operator *ada*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from control.rules import packs
from control.rules.judgement import Judgement
from control.rules.watching import judge_all
from control.snapshot import (
    Attempt,
    Checkpoint,
    Node,
    Rank,
    Request,
    Run,
    RunSnapshot,
    Sample,
)
from trainmaster.ids import checkpoint_id
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.rule import Rule
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
RULES = packs.load("default")
WORKLOAD = WorkloadInfo(num_layers=8, num_parameters=1000, num_samples=10_000, code_sha256="c")


def spec(**changes: Any) -> RunSpec:
    """Return alpha's spec; `changes` replace whole sections."""
    return RunSpec.model_validate(
        {
            "name": "alpha",
            "workload": "worker.workloads.byte_gpt:workload",
            "train": {"steps": 400, "global_batch": 64},
            "parallel": {"replicas": 2, "stages": 2, "micro_batch": 8},
            "checkpoint": {"every_steps": 10},
            **changes,
        }
    )


def plan(**ask: Any) -> Plan:
    """Return a plan for alpha's model, as asked; 2 x 2 by default."""
    asked = ask or {"replicas": 2, "stages": 2, "micro_batch": 8}
    return resolve(ParallelAsk.model_validate(asked), num_layers=8, global_batch=64)


def node(name: str = "oak", slots: int = 4, *, silent_s: float = 0.5, **changes: Any) -> Node:
    """Return a node that was last heard `silent_s` ago."""
    heard_at = NOW - timedelta(seconds=silent_s)
    return replace(Node(name, slots, heard_at, boot="boot-1", address=name), **changes)


def checkpoint(
    step: int, state: str = "trusted", *, generation: int = 1, **changes: Any
) -> Checkpoint:
    """Return a checkpoint of alpha whose bytes have been read back."""
    found = Checkpoint(
        id=checkpoint_id("alpha", generation, step),
        generation=generation,
        step=step,
        state=state,
        location=f"file:///alpha/g{generation}-step{step}",
        manifest_sha256="sha256:" + "0" * 64,
        created_at=NOW - timedelta(hours=1) + timedelta(seconds=step),
        verified_at=NOW,
        trusted_at=NOW if state == "trusted" else None,
    )
    return replace(found, **changes)


def attempt(generation: int = 1, **changes: Any) -> Attempt:
    """Return an attempt of alpha on oak that is ready."""
    bare = plan()
    homes = [each.model_copy(update={"nodes": ("oak", "oak")}) for each in bare.pipelines]
    found = Attempt(
        generation=generation,
        parent_generation=None,
        state="running",
        cause="The first attempt.",
        cause_kind="start",
        plan=bare.model_copy(update={"pipelines": tuple(homes)}),
        started_at=NOW - timedelta(minutes=10),
        ready_at=NOW - timedelta(minutes=9),
        first_step=1,
        last_step=50,
    )
    return replace(found, **changes)


def ranks(
    count: int = 4, state: str = "ready", *, on: str = "oak", **changes: Any
) -> tuple[Rank, ...]:
    """Return the ranks of an attempt on one node."""
    return tuple(
        replace(Rank(number, on, number, state, pid=100 + number, boot="boot-1"), **changes)
        for number in range(count)
    )


def with_rank(found: Iterable[Rank], number: int, **changes: Any) -> tuple[Rank, ...]:
    """Return the ranks with one of them changed."""
    return tuple(replace(each, **changes) if each.rank == number else each for each in found)


def exited(
    found: Iterable[Rank], number: int, *, ago_s: float = 0.2, **changes: Any
) -> tuple[Rank, ...]:
    """Return the ranks with one that exited `ago_s` ago."""
    at = NOW - timedelta(seconds=ago_s)
    return with_rank(found, number, state="exited", exited_at=at, **changes)


def samples(
    values: Mapping[int, float | None] | Iterable[tuple[int, float | None]],
    *,
    generation: int = 1,
    step_time_s: float = 0.1,
) -> tuple[Sample, ...]:
    """Return samples of steps, the newest of which ended just now."""
    found = sorted(dict(values).items())
    last = found[-1][0] if found else 0
    return tuple(
        Sample(generation, step, NOW - timedelta(seconds=(last - step) * step_time_s), value)
        for step, value in found
    )


def evaluate(rule: Rule, found: Sequence[Sample]) -> Judgement:
    """Return what a rule on run-level values says of samples that nobody has looked at before."""
    [judgement] = judge_all(running(rules=(rule,), windows={rule.metric: tuple(found)}))
    return judgement


def windows(
    last_step: int, *, bad: Iterable[int] = (), first_step: int = 1, generation: int = 1
) -> dict[str, tuple[Sample, ...]]:
    """Return healthy windows up to `last_step`, with a gradient norm that is not finite at the
    `bad` steps.
    """
    steps = range(first_step, last_step + 1)
    bad = set(bad)
    return {
        "loss": samples(((step, 3.0) for step in steps), generation=generation),
        "grad_norm": samples(
            ((step, math.nan if step in bad else 1.0) for step in steps), generation=generation
        ),
        "applied": samples(
            ((step, 0.0 if step in bad else 1.0) for step in steps), generation=generation
        ),
    }


def request(kind: str, number: int = 1, state: str = "pending", **args: Any) -> Request:
    """Return what ada asks."""
    return Request(number, kind, args, "ada", "", state, NOW - timedelta(seconds=1))


def running(**changes: Any) -> RunSnapshot:
    """Return alpha at step 50 of its first attempt, with checkpoints at 10, 20 and 30 trusted and
    40 and 50 committed.
    """
    run = Run(
        id="alpha",
        version=7,
        state="running",
        desired="running",
        generation=1,
        spec=spec(),
        workload=WORKLOAD,
        checkpoint_root="file:///alpha",
        created_at=NOW - timedelta(minutes=11),
        started_at=NOW - timedelta(minutes=10),
    )
    found = RunSnapshot(
        run=run,
        attempts=(attempt(last_committed_step=50),),
        ranks=ranks(),
        nodes=(node(taken=frozenset(range(4)), held_here=frozenset(range(4))),),
        checkpoints=(
            checkpoint(10),
            checkpoint(20),
            checkpoint(30),
            checkpoint(40, "committed"),
            checkpoint(50, "committed"),
        ),
        rules=RULES,
        windows=windows(50),
        control_up_since=NOW - timedelta(hours=1),
    )
    return change(found, **changes)


def change(snapshot: RunSnapshot, **changes: Any) -> RunSnapshot:
    """Return the snapshot with changed fields; those of the run may be given by their own names."""
    run_fields = {
        name: changes.pop(name)
        for name in ("state", "desired", "generation", "spec", "workload", "because", "code")
        if name in changes
    }
    return replace(snapshot, run=replace(snapshot.run, **run_fields), **changes)
