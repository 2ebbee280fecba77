"""`python -m bench.rules`: the default pack over a million steps of a CSV, and over a live run a
few steps at a time; a turn's rules out of ten files of a thousand.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from control.db import rulebook
from control.db.sql import schema
from control.db.sql.engine import Database
from control.rules import packs, sheet
from control.rules.backtest import backtest, metrics_of
from control.rules.watching import Watches, judge_all
from control.snapshot import WINDOW_STEPS, Attempt, Rank, Run, RunSnapshot, Sample
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from trainmaster.rule import MAX_RULES
from trainmaster.spec import RunSpec

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUN_METRICS = {
    "loss": 3.0,
    "grad_norm": 1.0,
    "applied": 1.0,
    "lr": 1e-3,
    "step_time_s": 0.1,
    "tokens_per_s": 1e4,
    "utilization_ratio": 0.95,
    "memory_used_ratio": 0.6,
    "latency_ms": 4.0,
    "bubble_ratio": 0.1,
    "checkpoint_stall_s": 0.0,
    "data_s": 0.001,
}


def rows(steps: int, spikes: int) -> Iterator[str]:
    """Yield a CSV of a healthy run with so many spikes of the gradient norm."""
    draw = random.Random(0)
    spiky = set(draw.sample(range(1, steps + 1), spikes))
    yield "step,loss,grad_norm\n"
    for step in range(1, steps + 1):
        norm = 8.0 if step in spiky else draw.gauss(1.0, 0.1)
        yield f"{step},{3 + draw.gauss(0, 0.05):.5f},{norm:.5f}\n"


def of_a_csv(steps: int, repetitions: int, spikes: int) -> dict[str, Any]:
    """Return the seconds that a back-test of a file takes, its reading included."""
    rules = packs.load("default")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.csv"
        path.write_text("".join(rows(steps, spikes)), encoding="utf-8")
        spent, reading = [], []
        for _ in range(repetitions):
            started = time.perf_counter()
            with path.open(encoding="utf-8", newline="") as lines:
                [history] = sheet.read(path.name, lines, metrics_of(rules))
            reading.append(time.perf_counter() - started)
            found = backtest(rules, history)
            spent.append(time.perf_counter() - started)
    return {
        "steps": steps,
        "spikes": spikes,
        "rules": len(rules),
        "seconds": spent,
        "of_which_reading": reading,
        "findings": len(found["findings"]),
    }


def of_turns(turns: int, ranks: int) -> dict[str, Any]:
    """Return what the rules cost in turns a second apart, ten steps each: from what the last turn
    remembers, and from nothing.
    """
    draw = random.Random(0)
    last = WINDOW_STEPS + 10 * turns
    made = {
        metric: [
            Sample(1, step, NOW + timedelta(seconds=step / 10), level * draw.gauss(1, 0.02))
            for step in range(1, last + 1)
        ]
        for metric, level in RUN_METRICS.items()
    }
    by_rank = {rank: [replace(each) for each in made["step_time_s"]] for rank in range(ranks)}
    spec = RunSpec.model_validate(
        {
            "name": "bench",
            "workload": "worker.workloads.byte_gpt:workload",
            "train": {"steps": last, "global_batch": 64},
        }
    )
    plan = resolve(
        ParallelAsk.model_validate({"replicas": ranks, "micro_batch": 1}),
        num_layers=8,
        global_batch=64,
    )
    run = Run("bench", 1, "running", "running", 1, spec, None, "file:///bench", NOW)
    base = RunSnapshot(
        run,
        attempts=(Attempt(1, None, "running", "The first attempt.", "start", plan, NOW),),
        ranks=tuple(Rank(rank, "n1", rank, "ready") for rank in range(ranks)),
        rules=packs.load("default"),
    )
    watches = Watches()
    remembered, anew = [], []
    for turn in range(turns + 1):
        end = WINDOW_STEPS + 10 * turn
        window = slice(max(0, end - WINDOW_STEPS), end)
        snapshot = replace(
            base,
            windows={metric: tuple(found[window]) for metric, found in made.items()},
            rank_windows={
                "compute_s": {rank: tuple(found[window]) for rank, found in by_rank.items()}
            },
        )
        started = time.perf_counter()
        watches.judge(snapshot)
        between = time.perf_counter()
        judge_all(snapshot)
        if turn:
            remembered.append(between - started)
            anew.append(time.perf_counter() - between)
    return {
        "turns": turns,
        "ranks": ranks,
        "rules": len(base.rules),
        "ms_remembered": 1e3 * statistics.median(remembered),
        "ms_from_nothing": 1e3 * statistics.median(anew),
    }


def of_rulebook(files: int, repetitions: int) -> dict[str, Any]:
    """Return what it takes to read a run's rules out of so many files of as many as may be, all
    other files beside them: from nothing, and while nothing changes.
    """
    pack = packs.load("default")
    anew, kept = [], []
    with tempfile.TemporaryDirectory() as folder:
        db = Database(f"sqlite:///{folder}/rules.db")
        schema.upgrade(db)
        for file in range(files):
            rules = [
                pack[place % len(pack)].model_copy(update={"name": f"{file}-{place}"})
                for place in range(MAX_RULES)
            ]
            with db.write() as connection:
                rulebook.add(connection, rules, pack=f"{file}", actor="bench", why="", now=NOW)
        remembered = rulebook.Kept()
        for _ in range(repetitions + 1):
            with db.read() as connection:
                started = time.perf_counter()
                rulebook.active(connection, "0")
                between = time.perf_counter()
                remembered.active(connection, "0")
                anew.append(between - started)
                kept.append(time.perf_counter() - between)
        db.close()
    return {
        "rules_stored": files * MAX_RULES,
        "rules_of_the_run": MAX_RULES,
        "ms_anew": 1e3 * statistics.median(anew),
        "ms_remembered": 1e3 * statistics.median(kept[1:]),
    }


def main() -> None:
    """Measure, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000, help="two points each")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--files", type=int, default=10, help="of a thousand rules each")
    asked = parser.parse_args()
    told = {
        "conditions": conditions(["numpy"]),
        "back_test": [
            of_a_csv(asked.steps, asked.repetitions, spikes) for spikes in (0, asked.steps // 1000)
        ],
        "turns": of_turns(asked.turns, asked.ranks),
        "rulebook": of_rulebook(asked.files, asked.turns),
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
