"""`python -m bench.planner`: each given case with its optimum and the time of the search, and the
large ones beside their references. `--against-exhaustive N` compares random small clusters with a
second implementation that tries every plan. `--write` puts what was found into
docs/campaigns/cases.md. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from control.planner.answer import plan_json
from control.planner.placing import place
from control.planner.reading import read_scenario
from control.planner.search import Found, search
from trainmaster.errors import SpecError

CASES = Path(__file__).parents[3] / "shared" / "planner" / "cases.json"
PAGE = Path(__file__).parents[2] / "docs" / "campaigns" / "cases.md"
MARK = "<!-- from here on as the bench wrote it -->"
COLUMNS = (
    *("case", "cluster", "nodes", "step s", "even s", "reference s", "bound s", "gap"),
    *("reference's gap", "exact", "search s (best of {n})", "CPU s"),
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
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("--write needs all cases")
    if given.against_exhaustive and not given.write:
        differ, told = against_exhaustive(given.seed, given.against_exhaustive)
        print(told)
        sys.exit(min(differ, 1))
    if not given.cases.is_file():
        sys.exit(f"there is no {given.cases}: name a file with --cases")
    cases = json.loads(given.cases.read_text())
    only = given.only.split(",") if given.only else None
    worse = 0
    lines = [
        f"| {' | '.join(COLUMNS)} |".format(n=given.repetitions),
        "|---" * len(COLUMNS) + "|",
    ]
    print("\n".join(lines))
    for case in [*cases["cases"], *cases["large_cases"]]:
        if only is None or case["id"] in only:
            row, good, found = measured(case, given.repetitions)
            print(row, flush=True)
            lines.append(row)
            worse += not good
            if given.plans:
                print(json.dumps(plan_json(found.draft, place(found.draft, found.scenario))))
    if given.write and given.against_exhaustive:
        differ, told = against_exhaustive(given.seed, given.against_exhaustive)
        print(told)
        lines += ["", told]
        worse += differ
    if given.write:
        write(lines)
    sys.exit(1 if worse else 0)


def write(lines: Sequence[str]) -> None:
    """Put the tables into the page, with the conditions under which they were measured."""
    machine = conditions(["numpy"])
    told = (
        f"On one core of {machine['cores']} ({machine['cpu']}), load average "
        f"{machine['load_average'][0]}, Python {machine['python']}, numpy "
        f"{machine['versions']['numpy']}."
    )
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text("\n".join([f"{head}{MARK}", "", told, "", *lines, ""]), encoding="utf-8")


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
        _title(case),
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


def _title(case: dict[str, Any]) -> str:
    if "title" in case:
        return str(case["title"])
    counts = (case.get("scenario") or case)["node_counts"]
    return " + ".join(f"{count} {kind}" for kind, count in counts.items())


def against_exhaustive(seed: int, number: int) -> tuple[int, str]:
    """Compare with trying everything; return how many differ, and what is to be told of it."""
    differ, seconds = 0, []
    for scenario in _small(seed, number):
        optimum, found, took = _both(scenario)
        seconds.append(took)
        if not (optimum == found == math.inf or abs(found - optimum) <= 1e-9 * optimum):
            differ += 1
            print(f"differs: {found} instead of {optimum}: {json.dumps(scenario)}")
    return differ, (
        f"{number} random clusters of at most 4 nodes and 6 layers: {differ} differ from trying "
        f"every plan; a search took {statistics.median(seconds):.3f} s in the middle, at most "
        f"{max(seconds):.3f} s"
    )


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
