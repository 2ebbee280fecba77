"""`python -m bench.planner`: each given case with its optimum and the time of the search, and the
large ones beside their references. `--against-exhaustive N` compares random small clusters with a
second implementation that tries every plan. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control.planner.answer import place, plan_json
from control.planner.reading import read_scenario
from control.planner.search import Found, search
from trainmaster.errors import SpecError

CASES = Path(__file__).parents[3] / "shared" / "planner" / "cases.json"
COLUMNS = (
    *("case", "nodes", "step s", "even s", "reference s", "bound s", "gap", "reference's gap"),
    *("exact", "search s (best of {n})", "CPU s"),
)


def main() -> None:
    """Print the table; exit 1 where a plan is worse than it should be."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description=__doc__)
    parser.add_argument("--cases", type=Path, default=CASES, help="a file of cases")
    parser.add_argument("--only", help="ids, with commas between them")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--plans", action="store_true", help="print the plans, too")
    parser.add_argument("--against-exhaustive", type=int, metavar="N", default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.against_exhaustive:
        sys.exit(against_exhaustive(given.seed, given.against_exhaustive))
    if not given.cases.is_file():
        sys.exit(f"there is no {given.cases}: name a file with --cases")
    cases = json.loads(given.cases.read_text())
    only = given.only.split(",") if given.only else None
    worse = 0
    print(f"| {' | '.join(COLUMNS)} |".format(n=given.repetitions))
    print("|---" * len(COLUMNS) + "|")
    for case in [*cases["cases"], *cases["large_cases"]]:
        if only is None or case["id"] in only:
            row, good, found = measured(case, given.repetitions)
            print(row, flush=True)
            worse += not good
            if given.plans:
                print(json.dumps(plan_json(found.draft, place(found.draft, found.scenario))))
    sys.exit(1 if worse else 0)


def measured(case: dict[str, Any], repetitions: int) -> tuple[str, bool, Found]:
    """Return a row of the table, whether the plan is as good as it should be, and the plan."""
    walls, cpus = [], []
    found = None
    for _ in range(repetitions):
        wall, cpu = time.perf_counter(), time.process_time()
        found = search(read_scenario(case))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    assert found is not None
    step_s = found.verdict.step_s
    if "optimum" in case:
        reference = case["optimum"]["step_time"]
        even, gap = case["baseline_even"]["step_time"], 0.0
        good = step_s <= reference * (1 + 1e-6)
    else:
        reference, even, gap = case["reference_step_time_s"], None, case["reference_gap"]
        good = step_s < reference
    cells = [
        case["id"],
        found.scenario.num_nodes,
        f"{step_s:.6g}",
        "" if even is None else f"{even:.6g}",
        f"{reference:.6g}",
        f"{found.bound.step_s:.6g}",
        f"{found.gap:.1%}",
        f"{gap:.1%}",
        "yes" if found.exact else "no",
        f"{min(walls):.2f}",
        f"{min(cpus):.2f}",
    ]
    return f"| {' | '.join(map(str, cells))} |", good, found


def against_exhaustive(seed: int, number: int) -> int:
    """Compare with trying everything; print and return how many differ."""
    differ, seconds = 0, []
    for scenario in _small(seed, number):
        optimum, found, took = _both(scenario)
        seconds.append(took)
        if not (optimum == found == math.inf or abs(found - optimum) <= 1e-9 * optimum):
            differ += 1
            print(f"differs: {found} instead of {optimum}: {json.dumps(scenario)}")
    print(
        f"{number} random clusters of at most 4 nodes and 6 layers: {differ} differ from trying "
        f"every plan; a search took {statistics.median(seconds):.3f} s in the middle, at most "
        f"{max(seconds):.3f} s"
    )
    return min(differ, 1)


def _small(seed: int, number: int) -> Iterator[dict[str, Any]]:
    from tests.fakes.scenarios import small_scenario

    for each in range(seed, seed + number):
        # Every plan of four nodes and six layers is much to try: most have three and five.
        size = (4, 6) if each % 10 == 0 else (3, 5)
        yield small_scenario(each, nodes=size[0], layers=size[1])


def _both(scenario: dict[str, Any]) -> tuple[float, float, float]:
    """Return the optimum, what the search finds as the second implementation judges it, and how
    long the search took.
    """
    from tests.fakes.rcm_oracle import Oracle

    oracle = Oracle(scenario)
    optimum, _ = oracle.optimum()
    started = time.perf_counter()
    try:
        found = search(read_scenario(scenario))
    except SpecError:
        return optimum, math.inf, time.perf_counter() - started
    took = time.perf_counter() - started
    plan = plan_json(found.draft, place(found.draft, found.scenario))
    judged = oracle.step_time(plan) if oracle.fits(plan) else math.nan
    return optimum, judged, took


if __name__ == "__main__":
    main()
