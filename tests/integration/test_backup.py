"""A back-up taken at work, a crash that damages the database, and the way back: what nodes told
since comes again from their spools, once, and nothing that runs is run twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.control.outside import until
from tests.integration.control.test_serving import command, serving
from tests.services.private_server import free_port
from trainmaster.home import Home, identity

STEPS = 100_000
SPEC = {
    "name": "alpha",
    "workload": "somewhere:workload",
    "params": {"steps": STEPS, "step_s": 0.02},
    "train": {"steps": STEPS, "global_batch": 8},
    "parallel": {"replicas": 1, "stages": 2, "micro_batch": 1},
    "checkpoint": {"every_steps": 1000},
}


class Ring:
    """A control plane that is killed and comes back at the same address, and one agent."""

    def __init__(self, root: Path) -> None:
        self.home = root / "control"
        self.agent_home = root / "agent"
        self.port = free_port()
        self.settings = {"TRAINMASTER_PORT": str(self.port)}
        self.agent: subprocess.Popen[bytes] | None = None

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", path, json=body)

    def _call(self, method: str, path: str, **more: Any) -> Any:
        answer = httpx.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            headers={"Authorization": f"Bearer {Home(self.home).token()}"},
            trust_env=False,
            timeout=60,
            **more,
        )
        assert answer.is_success, answer.text
        return answer.json()

    def start_agent(self) -> None:
        told = self.post("/v1/tokens", {"role": "agent", "node": "n1"})
        self.agent_home.mkdir()
        with (self.agent_home / "agent.out").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.agent"],
                env={
                    **os.environ,
                    "TRAINMASTER_HOME": str(self.agent_home),
                    "TRAINMASTER_URL": f"http://127.0.0.1:{self.port}",
                    "TRAINMASTER_TOKEN": told["token"],
                    "TRAINMASTER_NODE_NAME": "n1",
                    "TRAINMASTER_SLOTS": "2",
                },
                stderr=log,
            )

    def steps(self, run: str, rank: int, **query: Any) -> list[int]:
        points = self.get(
            f"/v1/runs/{run}/series", metric="step_time_s", rank=rank, points=100_000, **query
        )["points"]
        return [step for _, step, _, _ in points]

    def ranks(self, run: str) -> dict[int, int]:
        """Return rank -> pid of the newest generation's ranks that run."""
        shown = self.get(f"/v1/runs/{run}")["ranks"]
        return {each["rank"]: each["pid"] for each in shown if each["pid"] is not None}

    def require_each_step_once(self, run: str, *, up_to: int) -> None:
        """Wait until each rank has told more than `up_to` steps; each is there once."""
        for rank in (0, 1):
            until(lambda rank=rank: len(self.steps(run, rank)) > up_to, "the steps told since")
            steps = self.steps(run, rank)
            assert steps == list(range(1, len(steps) + 1))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return command(self.home, *words, **self.settings)

    def kill(self, control: subprocess.Popen[bytes]) -> None:
        control.kill()
        control.wait()
        # The record of a process that was killed stays, and would be taken for the next one's.
        Home(self.home).forget_process("control")


def damage(database: Path) -> None:
    """Zero some pages in the middle, and lose what was written late."""
    with database.open("r+b") as file:
        file.seek(database.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\0" * 16384)
    database.with_name(f"{database.name}-wal").unlink(missing_ok=True)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    if ring.agent is not None:
        ring.agent.terminate()
        ring.agent.wait(timeout=20)


def test_a_back_up_is_taken_at_work_and_put_back_after_a_crash_and_nodes_tell_the_rest_again(
    ring: Ring, tmp_path: Path
) -> None:
    saved, home = tmp_path / "saved.db", ring.home
    database = Home(home).database

    # One: a run at work, and a back-up of that moment.
    with serving(home, **ring.settings) as (control, _):
        ring.start_agent()
        until(lambda: ring.get("/v1/nodes"), "the node to come")
        run = ring.post("/v1/runs", {"spec": SPEC})["id"]
        until(lambda: len(ring.steps(run, 1)) > 20, "the first steps")
        done = ring.command("backup", str(saved))
        assert done.returncode == 0, done.stderr
        refused = ring.command("restore", str(saved))
        assert refused.returncode == 2
        assert "another control plane" in refused.stderr
        at_backup = len(ring.steps(run, 1))
        until(lambda: len(ring.steps(run, 1)) > at_backup + 50, "steps beyond the back-up")
        pids = ring.ranks(run)
        ring.kill(control)

    # Two: its disk has eaten some pages. It says so before it touches anything.
    damage(database)
    bytes_before = database.read_bytes()
    refused = ring.command("serve")
    assert refused.returncode == 2
    assert str(database) in refused.stderr
    assert "python -m control restore" in refused.stderr
    assert database.read_bytes() == bytes_before

    # Three: the way back. Ranks have trained on all the while, and are not started again.
    done = ring.command("restore", str(saved))
    assert done.returncode == 0, done.stderr
    [aside] = database.parent.glob("trainmaster.db.before-*Z")
    assert str(aside) in done.stderr
    with serving(home, **ring.settings) as (control, _):
        ring.require_each_step_once(run, up_to=at_backup + 100)
        assert ring.ranks(run) == pids
        assert ring.get(f"/v1/runs/{run}")["generation"] == 1
        kinds = Counter(each["kind"] for each in ring.get(f"/v1/runs/{run}/events"))
        assert kinds["rank_ready"] == 2
        assert kinds["rank_started"] == 2
        assert kinds["database_restored"] == 1

        # Four: a second generation, which the back-up will not know.
        os.kill(pids[0], signal.SIGKILL)
        newer = until(
            lambda: (now := ring.get(f"/v1/runs/{run}")["generation"]) > 1 and now, "the next"
        )
        assert newer > 1000, "numbers after a restore lie far above"
        until(lambda: len(ring.steps(run, 0, generation=newer)) > 5, "its first steps")
        second = ring.ranks(run)
        ring.kill(control)

    done = ring.command("restore", str(saved))
    assert done.returncode == 0, done.stderr
    with serving(home, **ring.settings):
        last = until(
            lambda: (now := ring.get(f"/v1/runs/{run}")["generation"]) > 1 and now,
            "a generation beyond both",
        )
        until(lambda: len(ring.steps(run, 0, generation=last)) > 5, "its first steps")
        assert last > newer, "no number is given out twice"
        assert all(identity(pid) is None for pid in second.values()), "nothing runs twice"
        told = ring.get(f"/v1/runs/{run}/events")
        [unknown] = [each for each in told if each["kind"] == "generation_unknown"]
        assert unknown["generation"] == newer
        assert "restored from a back-up" in unknown["because"]
        steps = ring.steps(run, 1, generation=last)
        assert steps == list(range(1, len(steps) + 1))
