"""`python -m bench.checkpoint`: what a checkpoint costs training and the disk, beside torch's own
ways, in one run. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.checkpoint.ranks import measure
from bench.checkpoint.state import MIB
from bench.conditions import conditions
from bench.spread import Spread
from bench.telling import tell
from worker.agent.settings import LIBRARY_TUNING

BESIDE = (
    *("memcpy_s", "raw_write_s", "raw_write_cpu_s"),
    *("hashed_write_s", "hashed_write_cpu_s", "digests_cpu_s"),
)


def summary(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all repetitions, and the ratios within each."""
    ways = [name for name in told[0] if name not in BESIDE]
    found: dict[str, Any] = {
        name: Spread.of([each[name] for each in told]).json() for name in BESIDE
    }
    found["hashed_write_throughput_ratio"] = Spread.of(
        [each["raw_write_s"] / each["hashed_write_s"] for each in told]
    ).json()
    for way in ways:
        speeds = [each[way]["speed_ratio"] for each in told]
        found[way] = {
            "stall_s": Spread.of([each[way]["stall_s"] for each in told]).json(),
            "whole_busy_s": Spread.of([each[way]["whole_busy_s"] for each in told]).json(),
            "training_lost_s": Spread.of([each[way]["lost_s"] for each in told]).json(),
            "cpu_s": Spread.of([each[way]["cpu_s"] for each in told]).json(),
            "whole_s": Spread.of([each[way]["whole_s"] for each in told]).json(),
            "stall_per_memcpy": Spread.of(
                [each[way]["stall_s"] / each["memcpy_s"] for each in told]
            ).json(),
            "write_throughput_ratio": Spread.of(
                [each["raw_write_s"] / each[way]["whole_s"] for each in told]
            ).json(),
            "training_speed_ratio": Spread.of([each for each in speeds if each]).json()
            if all(speeds)
            else None,
        }
    return found


def main() -> None:
    """Measure, print JSON, and write it where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    given = parser.parse_args()
    told: dict[str, Any] = {"conditions": conditions(["torch"])}
    os.environ.setdefault("GLIBC_TUNABLES", LIBRARY_TUNING)  # as the ranks of a run have it
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for mb in given.mb:
            each = measure(mb * MIB, given.repetitions, Path(name) / str(mb))
            told[f"{mb} MB"] = summary(each)
    told["conditions"]["load_average_after"] = [round(each, 2) for each in os.getloadavg()]
    tell(told, given.out)


if __name__ == "__main__":
    main()
