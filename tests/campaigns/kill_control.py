"""`python -m tests.campaigns.kill_control --minutes N --controls 3`: control planes on one
PostgreSQL are killed with -9 while nodes train and people steer. Afterwards the database must hold
every fact once, every request must have been acted on once, and every run must have succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from control.db import tables
from control.db.sql.engine import Database
from tests.campaigns import findings
from tests.campaigns.killer import Killer
from tests.campaigns.light_node import LightNode
from tests.campaigns.steering_person import Person
from tests.services.planes import ControlPlane, control_planes, environment, until
from tests.services.postgres import private_cluster
from trainmaster.client import Client

ROOT = Path(__file__).parents[2]
TERMINAL = {"succeeded", "failed"}
END_WITHIN_S = 180.0
INFO: Mapping[str, Any] = {
    "num_layers": 4,
    "layers": [],
    "num_parameters": 100,
    "num_samples": 1 << 20,
    "code_sha256": "0" * 64,
    "data_sha256": "1" * 64,
}
BURST_RULE = {
    "name": "campaign burst",
    "metric": "latency_ms",
    "when": {"condition": "above", "value": 1e6},
    "for": {"steps": 3},
    "mode": "act",
    "actions": [{"action": "checkpoint"}],
}


@dataclass(frozen=True, slots=True)
class Campaign:
    """How long, and of what size.

    Attributes:
        seconds: for how long control planes are killed.
        at_least: how many must have been.
        real: nodes with real agents and real ranks.
        light: nodes that pretend.
        at_once: runs of either sort that are under way at a time.
    """

    seconds: float
    at_least: int = 2
    controls: int = 3
    real: int = 3
    light: int = 6
    at_once: int = 4
    light_steps: int = 200
    real_steps: int = 150
    every_s: float = 3.0
    halts: bool = True


@dataclass(slots=True)
class Outcome:
    """What was done, and what was found wrong."""

    wrong: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)


class RealNode:
    """A real agent, whose ranks train on an emulated device."""

    def __init__(self, folder: Path, name: str, urls: str, token: str) -> None:
        self._log = folder / f"{name}.log"
        profile = folder / f"{name}.json"
        profile.write_text(
            json.dumps({"labels": {"kind": "real"}, "emulate": {"layer_time_s": 0.002}})
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.agent"],
                env=environment(
                    TRAINMASTER_HOME=str(folder / name),
                    TRAINMASTER_URL=urls,
                    TRAINMASTER_TOKEN=token,
                    TRAINMASTER_NODE_NAME=name,
                    TRAINMASTER_SLOTS="2",
                    TRAINMASTER_PROFILE=str(profile),
                ),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def spec_of(kind: str, number: int, folder: Path, steps: int) -> dict[str, Any]:
    """A run for real nodes, over two of them, or for one light one. Both name the same workload,
    since any node may be asked to describe it.
    """
    ranks = 2 if kind == "real" else 1
    return {
        "name": f"{kind}-{number}",
        "workload": "worker.workloads.byte_gpt:workload",
        "params": {"layers": 4, "width": 32, "heads": 2, "context": 32},
        "data": {"source": f"text:{folder / 'corpus.txt'}"},
        "train": {"steps": steps, "global_batch": 8},
        "parallel": {"replicas": ranks, "stages": 1, "micro_batch": 2},
        "placement": {"nodes": ranks, "min_nodes": ranks, "labels": {"kind": kind}},
        "checkpoint": {
            "every_steps": 20,
            "trust_after_steps": 5,
            "store": f"file://{folder / 'checkpoints'}",
        },
        "recovery": {"max_restarts": 1000},
    }


@dataclass(slots=True)
class Site:
    """What is running."""

    folder: Path
    database_url: str
    planes: Sequence[ControlPlane]
    urls: str
    admin: Client
    person: Person
    killer: Killer
    nodes: list[LightNode] = field(default_factory=list)

    def token_for(self, node: str) -> str:
        return str(self.admin.post("/v1/tokens", {"role": "agent", "node": node})["token"])

    def threads(self) -> list[Any]:
        return [self.person, self.killer, *self.nodes]


@contextmanager
def site(folder: Path, database_url: str, campaign: Campaign) -> Iterator[Site]:
    """Start control planes; nobody is killed yet."""
    write_corpus(folder / "corpus.txt")
    with ExitStack() as stack:
        planes = stack.enter_context(
            control_planes(folder, database_url, campaign.controls, TRAINMASTER_DRAIN_S="0.5")
        )
        urls = ",".join(plane.url for plane in planes)
        token = planes[0].token
        admin = stack.enter_context(Client(urls, token))
        killer = Killer(planes, database_url, every_s=campaign.every_s, halts=campaign.halts)
        person = Person(stack.enter_context(Client(urls, token, name="person")), killer.hint)
        stack.callback(killer.abandon)
        stack.callback(person.abandon)
        yield Site(folder, database_url, planes, urls, admin, person, killer)


def write_corpus(path: Path) -> None:
    words = ["the", "slow", "node", "waits", "for", "its", "peer", "and", "says", "why"]
    dice = random.Random(1)
    path.write_text(" ".join(dice.choice(words) for _ in range(40_000)))


def run_campaign(folder: Path, database_url: str, campaign: Campaign) -> Outcome:
    """Do all of it; what was wrong is in the outcome."""
    outcome = Outcome()
    marks = [time.monotonic()]
    with ExitStack() as stack:
        here = stack.enter_context(site(folder, database_url, campaign))
        here.admin.post("/v1/rules", {"rules": [BURST_RULE]})
        submitter = Submitter(here, campaign)
        for number in range(campaign.real):
            name = f"real-{number}"
            node = RealNode(folder, name, here.urls, here.token_for(name))
            stack.callback(node.stop)
        info = INFO
        if campaign.real:
            until(lambda: len(here.admin.get("/v1/nodes")) == campaign.real, what="real nodes")
            submitter.submit("real")
            info = described(database_url)
        for number in range(campaign.light):
            name = f"light-{number}"
            client = Client(here.urls, here.token_for(name), name=name)
            here.nodes.append(LightNode(name, client, info, slots=1))
        for node in here.nodes:
            node.start()
            stack.callback(node.stop)
        behind = Behind(database_url)
        stack.callback(behind.stop)
        behind.start()
        here.person.start()
        here.killer.start()
        marks.append(time.monotonic())
        while (
            time.monotonic() - marks[-1] < campaign.seconds
            or here.killer.done.total() < campaign.at_least
        ):
            submitter.keep_going()
            check_threads(here)
            time.sleep(0.3)
        marks.append(time.monotonic())
        here.killer.stop()
        here.person.stop()
        outcome.wrong += wait_for_end(here)
        for node in here.nodes:
            node.stop()
        check_threads(here)
        marks.append(time.monotonic())
        judge(here, outcome, behind)
    names = ("starting", "killing", "ending")
    outcome.counts["seconds"] = {
        name: round(end - begin, 1)
        for name, (begin, end) in zip(names, pairwise(marks), strict=True)
    }
    return outcome


def described(database_url: str) -> Mapping[str, Any]:
    db = Database(database_url)
    try:
        with db.read() as connection:
            found = connection.scalar(select(tables.workloads.c.info))
    finally:
        db.close()
    assert found is not None
    return dict(found)


class Submitter:
    """Keeps some runs of each sort under way."""

    def __init__(self, here: Site, campaign: Campaign) -> None:
        self._here = here
        self._campaign = campaign
        self._under_way: dict[str, list[str]] = {"real": [], "light": []}
        self._numbers = 0

    def submit(self, kind: str) -> None:
        self._numbers += 1
        campaign = self._campaign
        steps = campaign.real_steps if kind == "real" else campaign.light_steps
        spec = spec_of(kind, self._numbers, self._here.folder, steps)
        self._under_way[kind].append(self._here.person.submit(spec))

    def keep_going(self) -> None:
        campaign = self._campaign
        wanted = {"light": min(campaign.light, campaign.at_once), "real": campaign.real // 2}
        for kind, runs in self._under_way.items():
            runs[:] = [run for run in runs if self._here.person.show(run)["state"] not in TERMINAL]
            while len(runs) < wanted[kind]:
                self.submit(kind)


class Behind(threading.Thread):
    """Watches for how long the run that waits longest for its turn has waited."""

    def __init__(self, database_url: str) -> None:
        super().__init__(name="behind", daemon=True)
        self.most_s = 0.0
        self._db = Database(database_url)
        self._stopping = threading.Event()

    def run(self) -> None:
        oldest = select(func.min(tables.runs.c.next_look_at)).where(
            tables.runs.c.state.not_in(TERMINAL)
        )
        while not self._stopping.wait(0.25):
            with self._db.read() as connection:
                at = connection.scalar(oldest)
            if at is not None:
                self.most_s = max(self.most_s, (datetime.now(UTC) - at).total_seconds())

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._db.close()


def check_threads(here: Site) -> None:
    for each in here.threads():
        if each.failure is not None:
            raise AssertionError(f"{each.name} broke") from each.failure


def wait_for_end(here: Site) -> list[str]:
    """Wait until all runs have ended, and all that was told is stored."""
    deadline = time.monotonic() + END_WITHIN_S
    left = list(here.person.runs)
    while left and time.monotonic() < deadline:
        left = [run for run in left if here.person.show(run)["state"] not in TERMINAL]
        for run in left:
            here.person.go_on(run)
        check_threads(here)
        time.sleep(0.3)
    until(lambda: all(node.settled for node in here.nodes), what="all facts to be stored")
    return [f"run {run} has not ended: {here.person.show(run)['because']}" for run in left]


def judge(here: Site, outcome: Outcome, behind: Behind) -> None:
    epochs = [each for plane in here.planes for each in plane.epochs()]
    db = Database(here.database_url)
    try:
        with db.read() as connection:
            outcome.wrong += findings.all_of(connection, here.nodes, epochs)
            runs = connection.execute(
                select(tables.runs.c.id, tables.runs.c.name, tables.runs.c.generation)
            ).all()
            stored = {
                "events": connection.scalar(select(func.count()).select_from(tables.events)),
                "attempts": connection.scalar(select(func.count()).select_from(tables.attempts)),
                "incidents": connection.scalar(select(func.count()).select_from(tables.incidents)),
            }
    finally:
        db.close()
    for plane in here.planes:
        if "Traceback" in plane.log.read_text(errors="replace"):
            outcome.wrong.append(f"a traceback in {plane.log}")
    kinds = [asked.kind for asked in here.person.asked]
    takeovers = sorted(here.killer.takeovers_s)
    outcome.counts = {
        "ended": dict(sorted(here.killer.done.items())),
        "terms": len(epochs),
        "takeovers": {
            "count": len(takeovers),
            "p50_s": round(statistics.median(takeovers), 2) if takeovers else None,
            "max_s": round(takeovers[-1], 2) if takeovers else None,
        },
        "times nobody else was ready": len(here.killer.starts_s),
        "runs": {
            kind: sum(name.startswith(kind) for _, name, _ in runs) for kind in ("real", "light")
        },
        "steps told by light nodes": sum(
            each.step is not None
            for node in here.nodes
            for attempt in node.attempts.values()
            for each in attempt.spool.frames
        ),
        "syncs": sum(node.syncs for node in here.nodes),
        "syncs that nobody answered": sum(node.refused for node in here.nodes),
        "times a cursor went back": sum(
            spool.sent_again for node in here.nodes for spool in node.spools().values()
        ),
        "requests": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "requests asked again": dict(here.person.again),
        "requests refused": dict(here.person.refused),
        "longest a run waited for its turn, s": round(behind.most_s, 2),
        **stored,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.kill_control")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--controls", type=int, default=3)
    parser.add_argument("--real", type=int, default=3, help="nodes with real ranks")
    parser.add_argument("--light", type=int, default=6, help="nodes that pretend")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "big")
    random.seed(seed)
    campaign = Campaign(
        seconds=60 * given.minutes,
        controls=given.controls,
        real=given.real,
        light=given.light,
        every_s=given.every,
    )
    folder = Path(tempfile.mkdtemp(prefix="tm-kill-control-"))
    print(f"seed {seed}; logs in {folder}", flush=True)
    with private_cluster(synchronous_commit="on") as cluster:
        outcome = run_campaign(folder, cluster.url(cluster.create_database()), campaign)
    print(json.dumps({"minutes": given.minutes, "seed": seed, **outcome.counts}, indent=2))
    for sentence in outcome.wrong:
        print(f"WRONG: {sentence}")
    print("nothing is wrong" if not outcome.wrong else f"{len(outcome.wrong)} things are wrong")
    return bool(outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
