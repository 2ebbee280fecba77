"""Repetitions, gathered into one document of plain values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.ingest.site import FLUSHES, site
from bench.ingest.stored import FEW, bytes_stored, compact, reads
from bench.ingest.through import pass_through
from bench.measured import NAMES
from bench.spread import Spread

ROOT = Path(__file__).parents[2]
SERIES_POINTS = 100_000
READ_WITH_NODES = 1
PACKAGES = ("sqlalchemy", "psycopg", "uvicorn", "httpx", "pydantic", "numpy", "tsdownsample")
LIVES = ("flat_out", "computing", "idle", "disk_full")
Say = Callable[[str], None]
Json = dict[str, Any]


def measure(
    *,
    databases: Sequence[str],
    nodes: Sequence[int],
    peers: Sequence[str],
    peer_python: str,
    seconds: float,
    steps: int,
    repetitions: int,
    say: Say,
) -> Json:
    """Measure everything; see `python -m bench.ingest --help`.

    Args:
        steps: over all nodes of a passage.
        say: told what is about to be measured.
    """
    told: Json = {"conditions": conditions(PACKAGES), "metrics": len(NAMES)}
    told |= {"seconds": seconds, "steps": steps, "repetitions": repetitions}
    told["databases"] = {
        database: _database(database, nodes, steps, repetitions, say) for database in databases
    }
    told["blocking"] = _blocking(seconds, repetitions, say)
    told["peers"] = {name: _peer(name, peer_python, seconds, repetitions, say) for name in peers}
    told["conditions"]["load_average_after"] = [round(each, 2) for each in os.getloadavg()]
    return told


def _database(kind: str, nodes: Sequence[int], steps: int, repetitions: int, say: Say) -> Json:
    told: Json = {"flushes": FLUSHES[kind], "passages": {}}
    for count in nodes:
        passages, sizes, taken = [], list[float](), list[Json]()
        for repetition in range(repetitions):
            say(f"{kind}, {count} nodes, {repetition + 1} of {repetitions}")
            with site(kind, [f"n{number}" for number in range(count)]) as here:
                each = steps // count
                run, passage = pass_through(here, nodes=count, steps=each)
                passages.append(passage)
                compact(here)
                if count == READ_WITH_NODES:
                    taken.append(asdict(reads(here, run, points=each)))
                here.stop()
                sizes.append(bytes_stored(here) / passage.points)
        told["passages"][str(count)] = {
            "points": passages[0].points,
            "points_per_s": Spread.of([each.points_per_s for each in passages]).json(),
            "control_us_per_point": Spread.of([each.control_us for each in passages]).json(),
            "agents_us_per_point": Spread.of([each.agents_us for each in passages]).json(),
            "bytes_per_point": Spread.of(sizes).json(),
        }
        if taken:
            told["reads"] = {"points": steps // count, "few": FEW} | {
                name: Spread.of([one for each in taken for one in each[name]]).json()
                for name in taken[0]
            }
    return told


def _blocking(seconds: float, repetitions: int, say: Say) -> Json:
    found = []
    for repetition in range(repetitions):
        say(f"logging call, {repetition + 1} of {repetitions}")
        found.append(
            _run([sys.executable, "-m", "bench.ingest.blocking", "--seconds", str(seconds)])
        )
    return _lives(found)


def _peer(name: str, python: str, seconds: float, repetitions: int, say: Say) -> Json:
    command = [python, "-m", "bench.peers", name, "--seconds", str(seconds)]
    found: list[Json] = []
    for repetition in range(repetitions):
        say(f"{name}, {repetition + 1} of {repetitions}")
        told = _run([*command, "--points", str(SERIES_POINTS)])
        if "absent" in told:
            say(f"{name} is left out: {told['absent']}")
            return told
        found.append(told)
    figures = ("points_per_s", "bytes_per_point", "read_ms")
    return {
        "versions": found[0]["versions"],
        **_lives(found),
        **{
            name: Spread.of([each[name] for each in found]).json()
            for name in figures
            if found[0][name] is not None
        },
    }


def _lives(found: Sequence[Json]) -> Json:
    return {
        life: {
            figure: Spread.of([each[life][figure] for each in found]).json()
            for figure in found[0][life]
        }
        for life in LIVES
        if life in found[0]
    }


def _run(command: Sequence[str]) -> Json:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found: Json = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found
