"""A whole Trainmaster in a folder of its own, driven by the commands that outsiders rely on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trainmaster.client import Client
from trainmaster.home import Home

ROOT = Path(__file__).parents[2]
TRAINMASTER = Path(sys.executable).with_name("trainmaster")
TERMINAL = {"succeeded", "failed", "stopped", "paused"}
T = TypeVar("T")

OAK = {"name": "oak", "slots": 4, "emulate": {"layer_time_s": 0.006}}
"""The node of a ring. Its device sleeps rather than computes, some 100 ms a step, so that a story
goes as fast on a busy machine as on an idle one.
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(look: Callable[[], T], *, within_s: float = 60, what: str = "") -> T:
    """Look again until the answer is true; say what was seen last when it never is."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}; seen last: {seen!r}"
        time.sleep(0.25)


class CommandFailedError(AssertionError):
    """A command that returned something else than was expected of it."""


class Ring:
    """One home, one control plane, one agent, no dashboard unless asked for."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.port = free_port()
        self.environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith("TRAINMASTER_")
            },
            "TRAINMASTER_HOME": str(home),
            "TRAINMASTER_PORT": str(self.port),
            "TRAINMASTER_URL": f"http://127.0.0.1:{self.port}",
            "TRAINMASTER_ALLOW_DRILLS": "1",
            "OMP_NUM_THREADS": "1",
            **settings,
        }

    def call(self, *words: object, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run one command; any other exit status than `expect` is a failure that shows what was
        said.
        """
        done = subprocess.run(
            [TRAINMASTER, *map(str, words)],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        if expect is not None and done.returncode != expect:
            raise CommandFailedError(
                f"{words}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        return done

    def json(self, *words: object, expect: int | None = 0) -> Any:
        return json.loads(self.call(*words, "--json", expect=expect).stdout)

    def up(self, *options: object, nodes: Sequence[dict[str, Any]] = (OAK,)) -> None:
        cluster = self.home.parent / "cluster.yaml"
        cluster.write_text(yaml.safe_dump({"nodes": list(nodes)}))
        where = ("--port", self.port, "--home", self.home, "--cluster", cluster)
        self.call("up", "--detach", "--no-dashboard", *where, *options)

    def down(self) -> None:
        self.call("down", "--home", self.home, expect=None)

    def process(self, name: str) -> dict[str, Any]:
        [found] = [each for each in self.json("ps") if each["name"] == name]
        return dict(found)

    def kill(self, name: str) -> int:
        """Kill -9 one part, and return the pid it had."""
        pid = int(self.process(name)["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def submit(self, spec: dict[str, Any]) -> str:
        path = self.home.parent / f"{spec['name']}.yaml"
        path.write_text(yaml.safe_dump(spec))
        return str(self.json("submit", path)["id"])

    def get(self, path: str, **query: Any) -> Any:
        """What a command that reads would ask for, over HTTP: stories look often, and a process for
        each look would slow down what is looked at.
        """
        with self.client() as client:
            return client.get(path, **query)

    def client(self) -> Client:
        token = Home(self.home).token()
        return Client(self.environment["TRAINMASTER_URL"], token, timeout_s=60)

    def show(self, run: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/runs/{run}"))

    def wait_for(self, run: str, *states: str, within_s: float = 300) -> dict[str, Any]:
        wanted = set(states)

        def look() -> dict[str, Any] | None:
            seen = self.show(run)
            if seen["state"] in TERMINAL - wanted:
                raise AssertionError(f"{run} is {seen['state']}, not {wanted}: {seen['because']}")
            return seen if seen["state"] in wanted else None

        found = until(look, within_s=within_s, what=f"{run} to be {wanted}")
        assert found is not None
        return found

    def wait_for_step(
        self, run: str, step: int, *, generation: int | None = None
    ) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            seen = self.show(run)
            assert seen["state"] != "failed", seen["because"]
            far = (seen["step"] or 0) >= step
            return seen if far and generation in {None, seen["generation"]} else None

        found = until(look, within_s=300, what=f"{run} to reach step {step}")
        assert found is not None
        return found

    def wait_for_generation(self, run: str, generation: int) -> dict[str, Any]:
        """Wait until the run has begun its generation; return that attempt."""

        def look() -> list[dict[str, Any]]:
            seen = self.show(run)
            assert seen["state"] not in TERMINAL, seen["because"]
            return list(seen["attempts"][generation - 1 :])

        return until(look, within_s=300, what=f"{run} to be in generation {generation}")[0]

    def wait_for_checkpoint(self, run: str, step: int) -> None:
        """Wait until the state of `step` or a later one is committed and, where that is done, kept:
        both come behind training.
        """
        kinds = {"checkpoint_committed", "state_kept"}
        if self.show(run)["spec"]["checkpoint"].get("memory") == "off":
            kinds = {"checkpoint_committed"}

        def look() -> bool:
            told = [each for each in self.get(f"/v1/runs/{run}/events") if each["kind"] in kinds]
            return {each["kind"] for each in told if each["data"]["step"] >= step} == kinds

        until(look, what=f"the checkpoint of step {step}")

    def losses(self, run: str) -> dict[int, float | str]:
        points = self.json("series", run, "loss", "--points", 1_000_000)["points"]
        steps = [step for _, step, _, _ in points]
        assert steps == sorted(set(steps)), "each step once, ascending"
        return {step: value for _, step, value, _ in points}

    def events(self, run: str, kind: str | None = None) -> list[dict[str, Any]]:
        found = self.json("events", run)
        return [each for each in found if kind in {None, each["kind"]}]


def tiny(name: str, corpus: Path, *, steps: int = 150, **train: Any) -> dict[str, Any]:
    """A model that steps in milliseconds, data parallel 2 x pipeline parallel 2."""
    return {
        "name": name,
        "workload": "worker.workloads.byte_gpt:workload",
        "params": {"layers": 4, "width": 32, "heads": 2, "context": 32},
        "data": {"source": f"text:{corpus}"},
        "train": {
            "steps": steps,
            "global_batch": 16,
            "optimizer": {"lr": 1e-3, "warmup_steps": 5, "decay": "cosine", "grad_clip": 1.0},
            **train,
        },
        "parallel": {"replicas": 2, "stages": 2, "micro_batch": 4},
        "checkpoint": {"every_steps": 10, "trust_after_steps": 5},
    }


@contextmanager
def running(
    home: Path, *options: object, nodes: Sequence[dict[str, Any]] = (OAK,), **settings: str
) -> Iterator[Ring]:
    ring = Ring(home, **settings)
    try:
        ring.up(*options, nodes=nodes)
        yield ring
    finally:
        ring.down()


def same_losses(one: dict[int, float | str], other: dict[int, float | str]) -> Sequence[int]:
    """Return the steps at which two runs differ in their bits."""
    return [step for step in sorted(one.keys() | other.keys()) if one.get(step) != other.get(step)]
