"""`python -m bench.fleet`: how many nodes two control planes can hear, what a node, a run and a
rule cost, and how soon a failing rack is decided upon.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from sqlalchemy import func, select

from bench.conditions import conditions
from bench.fleet import report
from bench.fleet.agents import Agent, Tally
from bench.fleet.site import WORKLOAD, Site, site
from control.db import tables

RUNNING_WITHIN_S = 120.0
JOINING_PER_S = 250.0
"""Nodes that begin in a second: each costs a look-up of its token of its own, once."""


@dataclass(frozen=True, slots=True)
class Case:
    """What to measure."""

    nodes: int
    runs: int = 0
    ranks: int = 10
    rules: int = 0
    raw: bool = False
    rack: bool = False
    series: str = ""


@dataclass(slots=True)
class Result:
    """What was measured over `seconds`."""

    case: dict[str, Any]
    seconds: float = 0.0
    syncs_per_s: float = 0.0
    failures: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    cpu_cores: dict[str, float] = field(default_factory=dict)
    cpu_ms_per_sync: float = 0.0
    turns_behind_s: float = 0.0
    rack: dict[str, Any] = field(default_factory=dict)


async def measure(case: Case, *, controls: int, seconds: float) -> Result:
    """Run one case from nothing."""
    names = [f"r{number // 100}-n{number}" for number in range(case.nodes)]
    with site(controls, names) as here:
        tally = Tally()
        fleet = {
            name: Agent(name, here.tokens[name], here.ports, tally, raw=case.raw) for name in names
        }
        for position, agent in enumerate(fleet.values()):
            agent.start(position / JOINING_PER_S)
        await asyncio.sleep(case.nodes / JOINING_PER_S + 5.0)
        await asyncio.to_thread(_add_rules, here, case.rules)
        runs = await asyncio.to_thread(_submit, here, case)
        await _until_running(here, runs)
        result = await _observe(here, tally, case, seconds)
        if case.rack:
            result.rack = await _fail_rack(here, fleet, tally)
        for agent in fleet.values():
            agent.kill()
        return result


def _add_rules(here: Site, count: int) -> None:
    for number in range(count):
        here.client.post(
            "/v1/rules",
            {
                "name": f"bench-{number}",
                "pack": "default",
                "metric": "grad_norm",
                "scope": "run",
                "when": {"condition": "above", "value": 1e6 + number},
                "for": {"steps": 3},
                "severity": "warning",
                "mode": "observe",
            },
        )


def _submit(here: Site, case: Case) -> list[str]:
    return [
        here.client.post("/v1/runs", {"spec": _spec(number, case)})["id"]
        for number in range(case.runs)
    ]


def _spec(number: int, case: Case) -> dict[str, Any]:
    # Half of each run's nodes are in one rack, so that the failure of one is seen by the others.
    return {
        "name": f"run-{number}",
        "workload": WORKLOAD,
        "data": {"source": "workload"},
        "train": {"steps": 1_000_000, "global_batch": case.ranks, "seed": 0},
        "parallel": {"replicas": case.ranks, "stages": 1, "micro_batch": 1},
        "placement": {"nodes": case.ranks, "min_nodes": case.ranks},
    }


async def _until_running(here: Site, runs: Sequence[str]) -> None:
    deadline = time.monotonic() + RUNNING_WITHIN_S
    while True:
        states = await asyncio.to_thread(_states, here)
        if all(states.get(run) == "running" for run in runs):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all runs run: {sorted(states.values())}")
        await asyncio.sleep(0.5)


def _states(here: Site) -> dict[str, str]:
    with here.database.read() as connection:
        return dict(connection.execute(select(tables.runs.c.id, tables.runs.c.state)).all())


async def _observe(here: Site, tally: Tally, case: Case, seconds: float) -> Result:
    await asyncio.sleep(5.0)
    tally.reset()
    before, began = here.cpu_s(), time.monotonic()
    behind = []
    while time.monotonic() - began < seconds:
        await asyncio.sleep(1.0)
        behind.append(await asyncio.to_thread(_behind_s, here))
    spent, after = time.monotonic() - began, here.cpu_s()
    latencies = sorted(tally.latencies_s)
    cores = {kind: (after[kind] - before[kind]) / spent for kind in after}
    return Result(
        case=asdict(case),
        seconds=spent,
        syncs_per_s=tally.syncs / spent,
        failures=tally.failures,
        p50_s=latencies[len(latencies) // 2],
        p99_s=latencies[int(len(latencies) * 0.99)],
        max_s=latencies[-1],
        cpu_cores=cores,
        cpu_ms_per_sync=1e3 * (cores["control"] + cores["database"]) / (tally.syncs / spent),
        turns_behind_s=max(behind),
    )


def _behind_s(here: Site) -> float:
    """Return for how long the run that waits longest for its turn has waited."""
    with here.database.read() as connection:
        oldest = connection.scalar(select(func.min(tables.runs.c.next_look_at)))
    return max(0.0, (datetime.now(UTC) - oldest).total_seconds()) if oldest else 0.0


async def _fail_rack(here: Site, fleet: dict[str, Agent], tally: Tally) -> dict[str, Any]:
    """Let 100 nodes with ranks lose power at once; see when each run is decided upon.

    Peers elsewhere see their collectives break at once. A run wholly in the rack has no witness: it
    is decided upon when the lease ends.
    """
    tally.reset()
    busy = sorted(fleet.values(), key=lambda agent: not agent.assignments)
    # Every other one of them: runs are packed, and half of each stands elsewhere.
    victims = [agent for agent in busy if agent.assignments][::2][:100]
    others = [agent for agent in busy if agent not in victims]
    hit = {(each["run"], each["generation"]) for agent in victims for each in agent.assignments}
    at = datetime.now(UTC)
    for agent in victims:
        agent.kill()
    seen = set()
    for agent in others:
        mine = {(each["run"], each["generation"]) for each in agent.assignments} & hit
        if mine:
            agent.lose_peers(mine)
            seen |= {run for run, _ in mine}
    decided: dict[str, float] = {}
    deadline = time.monotonic() + 40
    while len(decided) < len(hit) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        for run, after_s in (await asyncio.to_thread(_decided, here, at)).items():
            decided.setdefault(run, after_s)
    of_seen = sorted(decided[run] for run in seen if run in decided)
    unseen = sorted(decided[run] for run, _ in hit if run in decided and run not in seen)
    return {
        "nodes": len(victims),
        "runs_hit": len(hit),
        "witnessed": len(seen),
        "witnessed_decided": len(of_seen),
        "witnessed_median_s": statistics.median(of_seen) if of_seen else None,
        "witnessed_max_s": of_seen[-1] if of_seen else None,
        "unwitnessed": len(hit) - len(seen),
        "unwitnessed_max_s": unseen[-1] if unseen else None,
        "sync_p99_s": sorted(tally.latencies_s)[int(len(tally.latencies_s) * 0.99)],
    }


def _decided(here: Site, since: datetime) -> dict[str, float]:
    r = tables.runs.c
    with here.database.read() as connection:
        found = connection.execute(
            select(r.id, r.state_since).where(r.state_since > since, r.state != "running")
        )
        return {run: (at - since).total_seconds() for run, at in found}


CASES = {
    "raw": [Case(nodes, raw=True) for nodes in (500, 1000, 1500, 2000)],
    "adaptive": [Case(nodes) for nodes in (2500, 5000, 7500)],
    "busy": [Case(1500, runs=15, raw=True), Case(5000, runs=15)],
    "runs": [Case(1000, runs=runs, series="runs") for runs in (0, 25, 50, 100)],
    "rules": [Case(500, runs=25, rules=rules, series="rules") for rules in (0, 50, 200)],
    "rack": [Case(1500, runs=20, ranks=20, rack=True)],
}


def main() -> None:
    """Measure, print a line per case, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="of: %(default)s")
    parser.add_argument("--nodes", type=int, help="one case with so many nodes instead")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=10)
    parser.add_argument("--rules", type=int, default=0)
    parser.add_argument("--raw", action="store_true", help="each node syncs each second")
    parser.add_argument("--rack", action="store_true", help="100 nodes lose power in the end")
    parser.add_argument("--controls", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, help="a folder for fleet.json, .md and .html")
    given = parser.parse_args()
    cases = [case for name in given.cases.split(",") for case in CASES[name]]
    if given.nodes:
        one = (given.nodes, given.runs, given.ranks, given.rules, given.raw, given.rack)
        cases = [Case(*one)]
    told = conditions(["fastapi", "sqlalchemy", "psycopg", "uvicorn", "uvloop", "httptools"])
    results = []
    for case in cases:
        load = os.getloadavg()[0]
        result = uvloop.run(measure(case, controls=given.controls, seconds=given.seconds))
        results.append({**asdict(result), "load_before": load})
        print(report.line(results[-1]), result.rack or "", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        whole = {"conditions": told, "controls": given.controls, "results": results}
        (given.out / "fleet.json").write_text(json.dumps(whole, indent=1))
        (given.out / "fleet.md").write_text(report.table(results))
        page = report.charts(results)
        if page is not None:
            (given.out / "fleet.html").write_text(page)


if __name__ == "__main__":
    main()
