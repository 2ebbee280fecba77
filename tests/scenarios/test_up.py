"""`up`, `ps` and `down` on a machine of one's own, and what keeps `up` from coming up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
TRAINMASTER = Path(sys.executable).with_name("trainmaster")


class Machine:
    """One state directory and the commands on it."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        inherited = {key: value for key, value in os.environ.items() if "TRAINMASTER_" not in key}
        self.environment = {
            **inherited,
            "TRAINMASTER_HOME": str(home),
            "OMP_NUM_THREADS": "1",
            **settings,
        }

    def call(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TRAINMASTER, *map(str, words)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    def ps(self) -> dict[str, dict[str, Any]]:
        done = self.call("ps", "--json")
        assert done.returncode == 0, done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)}

    def pids(self) -> set[int]:
        return {row["pid"] for row in self.ps().values() if row["pid"] is not None}

    def until(self, look, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while not look():
            assert time.monotonic() < deadline, self.ps()
            time.sleep(0.2)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home", TRAINMASTER_PORT="0", TRAINMASTER_DASHBOARD_PORT="0")
    yield made
    made.call("down")


def processes_of(home: Path) -> list[str]:
    """The command lines of all processes whose environment names `home`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and os.fsencode(home) in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_parts_that_are_killed_come_back_and_down_leaves_nothing(machine: Machine):
    up = machine.call("up", "--detach", "--no-dashboard", "--slots", 4, "--json")
    assert up.returncode == 0, up.stderr
    names = [row["name"] for row in json.loads(up.stdout)]
    assert {"supervisor", "control", "agent", "nest", "dashboard"} == set(names)
    before = machine.ps()
    assert before["dashboard"]["pid"] is None
    for name in ("control", "agent"):
        os.kill(before[name]["pid"], signal.SIGKILL)
    machine.until(
        lambda: all(
            machine.ps()[name]["pid"] not in {None, before[name]["pid"]}
            for name in ("control", "agent")
        )
    )
    machine.until(lambda: machine.call("nodes").returncode == 0)
    assert [machine.ps()[name]["restarts"] for name in ("control", "agent")] == [1, 1]
    assert json.loads(machine.call("nodes", "--json").stdout)[0]["slots"] == 4
    down = machine.call("down")
    assert down.returncode == 0, down.stderr
    assert machine.pids() == set()
    assert processes_of(machine.home) == []
    assert machine.call("down").returncode == 0


def test_a_second_up_prints_the_addresses_of_the_first(machine: Machine):
    first = machine.call("up", "--detach", "--no-dashboard")
    assert first.returncode == 0, first.stderr
    pids = machine.pids()
    second = machine.call("up", "--detach", "--no-dashboard")
    assert second.returncode == 0, second.stderr
    assert machine.ps()["control"]["address"] in second.stdout
    assert machine.pids() == pids


def test_an_agents_metrics_are_read_with_a_viewers_token_also_while_control_is_away(
    machine: Machine,
):
    machine.environment["TRAINMASTER_SUPERVISE"] = "0"
    up = machine.call("up", "--detach", "--no-dashboard")
    assert up.returncode == 0, up.stderr
    tokens = {
        role: json.loads(machine.call("token", "create", "--role", role, *more, "--json").stdout)
        for role, more in {"viewer": (), "agent": ("--node", "other")}.items()
    }
    address = machine.ps()["agent"]["address"]

    def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{address}/metrics", headers=headers, trust_env=False).status_code

    viewer = tokens["viewer"]["token"]
    assert httpx.get(f"{address}/metrics", trust_env=False).status_code == 401
    assert [status(each) for each in (viewer, tokens["agent"]["token"], "none")] == [200, 403, 401]
    os.kill(machine.ps()["control"]["pid"], signal.SIGKILL)
    assert [status(viewer), status("unknown")] == [200, 503]


def test_ctrl_c_ends_all_of_it_and_the_login_link_works(machine: Machine):
    with subprocess.Popen(
        [TRAINMASTER, "up"],
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as up:
        assert up.stdout is not None
        lines = []
        for line in up.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        [link] = re.findall(r"(http://\S+/auth/login\?code=\S+)", "".join(lines))
        status = subprocess.run(
            ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", link],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert status == "303", "a good code is answered with the way to the first page"
        began = time.monotonic()
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0
        assert time.monotonic() - began < 15
    assert processes_of(machine.home) == []


def test_the_parts_end_with_a_supervisor_that_is_killed(machine: Machine):
    assert machine.call("up", "--detach", "--no-dashboard").returncode == 0
    os.kill(machine.ps()["supervisor"]["pid"], signal.SIGKILL)
    machine.until(lambda: processes_of(machine.home) == [])
    assert machine.call("up", "--detach", "--no-dashboard").returncode == 0, "it can be up again"


def test_with_a_cluster_file_there_is_an_agent_for_each_node(machine: Machine, tmp_path: Path):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "nodes:\n"
        "  - {name: oak, slots: 2, labels: {room: a}}\n"
        "  - {name: elm, slots: 1, emulate: {speed: 0.5}}\n"
        "links: [{from: oak, to: elm, latency_ms: 3}]\n"
    )
    up = machine.call("up", "--detach", "--no-dashboard", "--cluster", cluster)
    assert up.returncode == 0, up.stderr
    parts = machine.ps()
    assert parts["agent:oak"]["pid"] is not None
    assert parts["agent:elm"]["pid"] is not None
    nodes = {node["name"]: node for node in json.loads(machine.call("nodes", "--json").stdout)}
    assert (nodes["oak"]["slots"], nodes["elm"]["slots"]) == (2, 1)
    assert nodes["oak"]["labels"] == {"room": "a"}
    assert nodes["elm"]["profile"]["speed"] == 0.5


def test_a_dead_part_may_be_replaced_by_hand(machine: Machine):
    machine.environment["TRAINMASTER_SUPERVISE"] = "0"
    assert machine.call("up", "--detach", "--no-dashboard").returncode == 0
    before = machine.ps()
    os.kill(before["control"]["pid"], signal.SIGKILL)
    machine.until(lambda: machine.ps()["control"]["pid"] is None)
    assert machine.call("nodes").returncode == 3
    del machine.environment["TRAINMASTER_PORT"]
    with subprocess.Popen([TRAINMASTER, "control"], env=machine.environment) as control:
        machine.until(lambda: machine.call("nodes").returncode == 0)
        after = machine.ps()["control"]
        assert (after["pid"], after["address"]) == (control.pid, before["control"]["address"])
        assert machine.call("control").returncode == 4, "its place is taken"
        assert machine.call("down").returncode == 0
        control.wait(20)
    assert processes_of(machine.home) == []


def test_a_port_in_use_is_one_sentence_and_nothing_is_left_running(machine: Machine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = machine.call("up", "--detach", "--no-dashboard", "--port", port)
    assert done.returncode == 3
    assert done.stderr.strip() == (
        f"port {port} is in use by another process: end it, or choose another port with --port or "
        f"TRAINMASTER_PORT"
    )
    assert processes_of(machine.home) == []


def test_a_control_plane_that_cannot_start_is_told_with_its_last_words(tmp_path: Path):
    machine = Machine(tmp_path / "home", TRAINMASTER_PORT="0", TRAINMASTER_LOG_LEVEL="LOUD")
    done = machine.call("up", "--detach", "--no-dashboard")
    assert done.returncode == 3
    assert "TRAINMASTER_LOG_LEVEL" in done.stderr
    assert "Traceback" not in done.stderr
    assert processes_of(machine.home) == []


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_state_directory_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, kind):
    blocker = tmp_path / "blocker"
    blocker.write_text("here first")
    home = blocker if kind == "a file" else blocker / "home"
    done = Machine(home).call("up", "--detach")
    assert done.returncode == 2
    assert str(home) in done.stderr
    assert "Traceback" not in done.stderr
