"""`python -m bench.planner.scale`: plans on paper for 8 to 4,096 nodes of mixed generations, and
where their efficiency goes. `--write` puts the tables into docs/campaigns/scale.md. Nothing is
measured but the time of the search; every figure that is assumed stands on the page.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.planner.reading import read_scenario
from control.planner.search import Found, search
from control.planner.textbook import checkpoint_overhead, daly_interval_s

PAGE = Path(__file__).parents[2] / "docs" / "campaigns" / "scale.md"
MARK = "<!-- from here on as the script wrote it -->"

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MIX = {"H100": 1 / 8, "A100": 1 / 4, "V100": 3 / 8, "T4": 1 / 4}
TYPES = {
    "H100": {"flops": 4e14, "mem": 72e9},
    "A100": {"flops": 1.5e14, "mem": 36e9},
    "V100": {"flops": 5e13, "mem": 28e9},
    "T4": {"flops": 2e13, "mem": 14e9},
}
LAYER = {"fwd": 2.4e11, "params": 50e6, "out": 8.4e6, "act": 1.4e8}
LAYERS = 48
PER_NODE = 32
"""Samples of a step per node where the batch grows with the cluster."""
FIXED_BATCH = 8192
LINK = {"bw": 1.25e10, "lat": 1e-5}

STALL_S, RESTART_S = 5.0, 300.0
HOURS = {"GLM-130B": 90_000.0, "Llama 3": 50_700.0, "OPT-175B": 13_600.0}
"""Device-hours per interruption, as the page derives them."""
NEAR_LINEAR = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """Where the time of a step goes, as shares of it, and of all time with failures."""

    nodes: int
    batch: int
    found: Found
    search_s: float

    @property
    def useful(self) -> float:
        """What the work would take if every node could always do its part, over the step."""
        s = self.found.scenario
        work = s.global_batch * float(s.layers.fwd.sum()) * (1 + s.bwd_mult)
        power = sum(kind.flops * count for kind, count in zip(s.kinds, s.counts, strict=True))
        return work / power / self.found.verdict.step_s

    @property
    def sums(self) -> float:
        """What of the step sums of gradients are waited for."""
        verdict = self.found.verdict
        return max(0.0, verdict.step_s - max(verdict.pipe_s)) / verdict.step_s

    @property
    def pipelines(self) -> float:
        """What is left: bubbles, cuts and shares that do not come out even, nodes left out."""
        return max(0.0, 1 - self.useful - self.sums)

    @property
    def fullest(self) -> float:
        """The largest share of a node's memory that is needed."""
        draft, model = self.found.draft, self.found.model
        return max(
            need / self.found.scenario.kinds[kind].mem
            for pipe in draft.pipes
            for kind, need in zip(
                pipe.kinds, model.memory(pipe, draft.setting, draft.replicas), strict=True
            )
        )

    def left(self, hours: float) -> float:
        """Return what checkpoints and failures leave of all time."""
        mtbf_s = hours * 3600 / self.found.draft.nodes
        interval = max(self.found.verdict.step_s, daly_interval_s(STALL_S, mtbf_s))
        return 1 / (1 + checkpoint_overhead(interval, STALL_S, mtbf_s, RESTART_S))


def points(sizes: Sequence[int], *, grows: bool) -> Iterator[Point]:
    """Yield a plan for each size."""
    for nodes in sizes:
        batch = PER_NODE * nodes if grows else FIXED_BATCH
        started = time.process_time()
        found = search(read_scenario(scenario(nodes, batch)))
        yield Point(nodes, batch, found, time.process_time() - started)


def scenario(nodes: int, batch: int) -> dict[str, Any]:
    """Return the scenario of a cluster of mixed generations."""
    return {
        "node_counts": {name: round(nodes * share) for name, share in MIX.items()},
        "node_types": TYPES,
        "layers": [LAYER] * LAYERS,
        "link": LINK,
        "global_batch": batch,
        "micro_batch_choices": [1, 2],
        "zero_choices": [0, 1],
        "bucket_bytes": 1e8,
        "overlap": True,
    }


def table(found: Sequence[Point]) -> list[str]:
    """Return a table, and up to where it is near-linear."""
    first = found[0].useful
    lines = [
        "| nodes | batch | step s | useful | pipelines and shares | sums of gradients | of "
        f"{found[0].nodes} nodes' | pipelines | nodes used | fullest memory | "
        + " | ".join(f"with failures as {name}" for name in HOURS)
        + " | search CPU s |",
        "|---" * (11 + len(HOURS)) + "|",
    ]
    for each in found:
        draft = each.found.draft
        cells = [
            each.nodes,
            each.batch,
            f"{each.found.verdict.step_s:.3g}",
            f"{each.useful:.1%}",
            f"{each.pipelines:.1%}",
            f"{each.sums:.1%}",
            f"{each.useful / first:.0%}",
            draft.replicas,
            draft.nodes,
            f"{each.fullest:.0%}",
            *(f"{each.useful * each.left(hours):.1%}" for hours in HOURS.values()),
            f"{each.search_s:.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    linear = [each.nodes for each in found if each.useful / first >= NEAR_LINEAR]
    lines += [
        "",
        f"At least {NEAR_LINEAR:.0%} of the smallest cluster's efficiency: {_told(linear)}.",
    ]
    return lines


def _told(nodes: Sequence[int]) -> str:
    return f"{', '.join(map(str, nodes))} nodes"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner.scale", description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="nodes of the largest cluster")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args()
    sizes = [each for each in SIZES if each <= asked.most]
    if not sizes or (asked.write and sizes != list(SIZES)):
        parser.error(f"--most from {SIZES[0]} on; --write needs all")
    lines = ["## A batch that grows with the cluster", ""]
    lines += table(list(points(sizes, grows=True)))
    lines += ["", f"## The same batch of {FIXED_BATCH} samples for all", ""]
    lines += table(list(points(sizes, grows=False)))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines += ["", f"All of these together took {peak_mib:.0f} MiB of memory at most."]
    print("\n".join(lines))
    if asked.write:
        told = PAGE.read_text().partition(MARK)[0]
        PAGE.write_text("\n".join([f"{told}{MARK}", "", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
