"""From complete spool files to what a series read returns: points a second."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.ingest.site import Site
from bench.measured import NAMES
from control.db.series import single

WITHIN_S = 300.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Through:
    """One passage.

    Attributes:
        points: what series reads returned afterwards, all ranks and metrics.
        seconds: from the moment when agents could see the spools until the last step of every rank
            was read over HTTP.
        control_us, agents_us: processor time per point.
    """

    nodes: int
    points: int
    seconds: float
    control_us: float
    agents_us: float

    @property
    def points_per_s(self) -> float:
        """How fast it went."""
        return self.points / self.seconds

    def json(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {**asdict(self), "points_per_s": self.points_per_s}


def pass_through(here: Site, *, nodes: int, steps: int) -> tuple[str, Through]:
    """Have one run with a rank on each of `nodes` pass; return the run's name and what was seen.

    Raises:
        RuntimeError: points are missing, doubled, or do not come.
    """
    folder = here.root / "meet"
    folder.mkdir()
    run = str(here.client.post("/v1/runs", {"spec": _spec(nodes, steps, folder)})["id"])
    _until(lambda: len(list(folder.glob("written-*"))) == nodes, here, run, "spools to be written")
    before, began = here.cpu_s(), time.perf_counter()
    (folder / "go").touch()
    for rank in range(nodes):
        _until(lambda rank=rank: _has(here, run, rank, steps), here, run, f"rank {rank}'s samples")
    seconds = time.perf_counter() - began
    spent = {name: used - before[name] for name, used in here.cpu_s().items()}
    points = _count(here, run, nodes, steps)
    return run, Through(
        nodes,
        points,
        seconds,
        1e6 * spent["control"] / points,
        1e6 * spent["agents"] / points,
    )


def _spec(nodes: int, steps: int, folder: Path) -> dict[str, Any]:
    return {
        "name": "ingest",
        "workload": "bench.ingest.rank:workload",
        "params": {"steps": steps, "folder": str(folder)},
        "train": {"steps": 10 * steps, "global_batch": nodes},
        "parallel": {"replicas": nodes, "stages": 1, "micro_batch": 1},
        "placement": {"nodes": nodes, "min_nodes": nodes},
        "checkpoint": {"every_steps": 10 * steps},
    }


def _until(condition: Any, here: Site, run: str, what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            seen = here.client.get(f"/v1/runs/{run}")
            raise RuntimeError(f"no {what} within {WITHIN_S} s; {seen['state']}: {seen['because']}")
        time.sleep(LOOK_S)


def _has(here: Site, run: str, rank: int, last_step: int) -> bool:
    told = here.client.get(
        f"/v1/runs/{run}/series",
        metric="step_time_s",
        rank=rank,
        after_step=last_step - 1,
        points=2,
    )
    return bool(told["points"])


def _count(here: Site, run: str, nodes: int, steps: int) -> int:
    database = here.open()
    try:
        with database.read() as connection:
            found = {
                f"{name} of rank {rank}": single.series(connection, run, name, rank=rank, points=2)[
                    "total_points"
                ]
                for rank in range(nodes)
                for name in NAMES
            }
    finally:
        database.close()
    wrong = {name: count for name, count in found.items() if count != steps}
    if wrong:
        raise RuntimeError(f"of {steps} steps there are {json.dumps(wrong)}")
    return sum(found.values())
