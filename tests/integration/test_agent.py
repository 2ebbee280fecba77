"""A real agent with a real nest that forks fake ranks, against a fake control plane."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.control_plane import TOKEN, FakeControlPlane, assignment
from trainmaster.calibration import Calibration
from trainmaster.home import Home, identity
from trainmaster.orders import Drill, Order
from trainmaster.wire import PROTOCOL_VERSION, Chore
from worker.launch import Inbox

SCRAPE = "scrape-me"
PROMISED = (
    "trainmaster_loss",
    "trainmaster_grad_norm",
    "trainmaster_step",
    "trainmaster_step_duration_seconds",
    "trainmaster_tokens_total",
    "trainmaster_device_utilization_ratio",
    "trainmaster_memory_used_ratio",
    "trainmaster_pipeline_bubble_ratio",
    "trainmaster_collective_duration_seconds",
    "trainmaster_link_bandwidth_bytes_per_second",
    "trainmaster_link_saturation_ratio",
    "trainmaster_failed_steps_total",
    "trainmaster_checkpoint_stall_seconds",
    "trainmaster_checkpoint_age_seconds",
    "trainmaster_node_info",
)


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


class Node:
    """An agent process on a state directory of its own."""

    def __init__(self, home: Path, plane: FakeControlPlane, *, token: str = TOKEN) -> None:
        self.home = Home(home)
        self.plane = plane
        self.token = token
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "TRAINMASTER_HOME": str(self.home.root),
            "TRAINMASTER_URL": self.plane.url,
            "TRAINMASTER_TOKEN": self.token,
            "TRAINMASTER_METRICS_TOKEN": SCRAPE,
            "TRAINMASTER_NODE_NAME": "n1",
            "TRAINMASTER_SLOTS": "8",
        }
        self.home.root.mkdir(exist_ok=True)
        with (self.home.root / "agent.out").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.agent"], env=environment, stderr=log
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=20)

    def nest_pid(self) -> int | None:
        record = self.home.process("nest")
        return record.pid if record and record.alive else None

    def told(self) -> str:
        return (self.home.root / "agent.out").read_text()


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> Iterator[FakeControlPlane]:
    """Today's, or one of the protocol that the test names."""
    plane = FakeControlPlane(getattr(request, "param", PROTOCOL_VERSION))
    plane.up()
    yield plane
    plane.down()


@pytest.fixture
def node(tmp_path: Path, plane: FakeControlPlane) -> Iterator[Node]:
    node = Node(tmp_path / "home", plane)
    node.start()
    yield node
    if node.process is not None:
        node.process.terminate()
        node.process.wait(timeout=20)


def ranks_alive(plane: FakeControlPlane, generation: int = 1) -> dict[int, int]:
    running = plane.last.running if plane.syncs else []
    return next((each.ranks for each in running if each.generation == generation), {})


def exits(plane: FakeControlPlane) -> list[tuple[int, int, int | None, int | None]]:
    return [
        (each["generation"], each["rank"], each["exit_code"], each["signal"])
        for each in plane.events("rank_exited")
    ]


def test_ranks_run_and_their_exit_comes_after_their_last_step(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(ranks=2, steps=20)]
    until(lambda: len(exits(plane)) == 2)
    assert sorted(exits(plane)) == [(1, 0, 0, None), (1, 1, 0, None)]
    for rank in (0, 1):
        stream = plane.streams[f"r1/1/{rank}"]
        assert stream.steps == list(range(1, 21))
        assert stream.values["loss"][0] == 5.0
        assert str(stream.values["loss"][1]) == "nan"
        assert stream.values["grad_norm"] == [None] * 20
    assert len(plane.events("rank_started")) == 2
    assert plane.events("node_started") == [{"boot": plane.last.boot}]
    assert "rank 1 begins" in node.home.rank_log("n1", "r1", 1, 1).read_text()


def test_a_rank_that_ended_is_not_started_again_in_its_generation(
    plane: FakeControlPlane, node: Node
):
    plane.assignments = [assignment(exit_code=75)]
    until(lambda: exits(plane) == [(1, 0, 75, None)])
    syncs = len(plane.syncs)
    until(lambda: len(plane.syncs) > syncs + 3)
    assert len(plane.events("rank_started")) == 1
    plane.assignments = [assignment(generation=2)]
    until(lambda: exits(plane) == [(1, 0, 75, None), (2, 0, 0, None)])


def test_a_killed_rank_is_reported_at_once_and_its_group_is_ended(
    plane: FakeControlPlane, node: Node
):
    plane.next_sync_s = 1.0
    plane.assignments = [assignment(ranks=3, steps=10**6)]
    until(lambda: len(ranks_alive(plane)) == 3)
    victim = ranks_alive(plane)[1]
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    until(lambda: (1, 1, None, 9) in exits(plane))
    assert time.monotonic() - killed_at < 2.0
    until(lambda: len(exits(plane)) == 3)
    assert time.monotonic() - killed_at < 4.0
    others = [each for each in plane.events("rank_exited") if each["rank"] != 1]
    assert [each["because"] for each in others] == [
        f"rank {each['rank']} was ended by its agent: rank 1 failed" for each in others
    ]
    assert [each["stopped"] for each in plane.events("rank_exited")] == [False, True, True]


def test_a_superseded_generation_is_dead_before_the_next_begins(
    plane: FakeControlPlane, node: Node
):
    plane.assignments = [assignment(ranks=2, steps=10**6, stubborn=True)]
    until(lambda: len(ranks_alive(plane)) == 2)
    old = ranks_alive(plane)
    os.kill(old[0], signal.SIGSTOP)
    plane.assignments = [assignment(generation=2, ranks=2, steps=10**6)]
    until(lambda: len(ranks_alive(plane, 2)) == 2)
    assert all(identity(pid) is None for pid in old.values())
    assert all(len([r for r in sync.running if r.ranks]) <= 1 for sync in plane.syncs)
    plane.assignments = []
    until(lambda: len(exits(plane)) == 4)


def test_a_killed_nest_takes_its_ranks_along_and_comes_back(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(ranks=2, steps=10**6)]
    until(lambda: len(ranks_alive(plane)) == 2)
    pids, nest = ranks_alive(plane), node.nest_pid()
    assert nest is not None
    os.kill(nest, signal.SIGKILL)
    until(lambda: len(exits(plane)) == 2)
    assert sorted(exits(plane)) == [(1, 0, None, 9), (1, 1, None, 9)]
    assert {each["because"] for each in plane.events("rank_exited")} == {
        f"rank {rank} died with its nest (signal 9)" for rank in (0, 1)
    }
    assert plane.events("nest_exited") == [{"exit_code": None, "signal": 9}]
    assert all(identity(pid) is None for pid in pids.values())
    plane.assignments = [assignment(generation=2)]
    until(lambda: (2, 0, 0, None) in exits(plane))
    assert node.nest_pid() != nest
    assert node.home.process("nest").restarts == 1


def test_a_nest_that_could_not_be_written_down_is_so_once_there_is_room(
    plane: FakeControlPlane, node: Node
):
    plane.assignments = [assignment(ranks=1, steps=10**6)]
    until(lambda: len(ranks_alive(plane)) == 1)
    nest = node.nest_pid()
    records, aside = node.home.root / "processes", node.home.root / "aside"
    records.rename(aside)
    records.touch()
    os.kill(nest, signal.SIGKILL)
    plane.assignments = [assignment(generation=2)]
    until(lambda: (2, 0, 0, None) in exits(plane))
    records.unlink()
    aside.rename(records)
    until(lambda: node.nest_pid() not in {None, nest})


def test_a_killed_agent_takes_everything_along_and_the_next_one_reports_it(
    plane: FakeControlPlane, node: Node
):
    plane.assignments = [assignment(ranks=2, steps=10**6)]
    until(lambda: len(ranks_alive(plane)) == 2 and plane.steps("r1/1/1"))
    pids, nest = ranks_alive(plane), node.nest_pid()
    node.kill()
    until(lambda: all(identity(pid) is None for pid in (*pids.values(), nest)))
    node.start()
    until(lambda: len(exits(plane)) == 2)
    assert sorted(exits(plane)) == [(1, 0, None, 9), (1, 1, None, 9)]
    boots = plane.events("node_started")
    assert len(boots) == 2
    assert boots[0] != boots[1]
    assert len(plane.events("rank_started")) == 2, "a dead generation is not begun again"
    for rank in (0, 1):
        steps = plane.steps(f"r1/1/{rank}")
        assert steps == list(range(1, len(steps) + 1))
    plane.assignments = [assignment(generation=2)]
    until(lambda: (2, 0, 0, None) in exits(plane))
    assert node.home.process("agent").restarts == 1


def test_a_control_plane_away_and_back_gets_every_fact_once(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(ranks=2, steps=150)]
    until(lambda: len(ranks_alive(plane)) == 2 and plane.steps("r1/1/0"))
    plane.down()
    pids = ranks_alive(plane)
    until(lambda: all(identity(pid) is None for pid in pids.values()))
    plane.up()
    until(lambda: len(exits(plane)) == 2)
    assert sorted(exits(plane)) == [(1, 0, 0, None), (1, 1, 0, None)]
    for rank in (0, 1):
        assert plane.steps(f"r1/1/{rank}") == list(range(1, 151))
    assert len(plane.events("rank_started")) == 2
    assert "is out of reach" in node.told()


def test_a_control_plane_restored_from_backup_is_told_again(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(ranks=1, steps=30)]
    until(lambda: len(exits(plane)) == 1)
    plane.down()
    plane.streams.clear()
    syncs = len(plane.syncs)
    until(lambda: "is out of reach" in node.told())
    plane.up()
    until(lambda: len(plane.syncs) > syncs and len(exits(plane)) == 1)
    assert plane.steps("r1/1/0") == list(range(1, 31))


def test_orders_reach_the_inbox(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(steps=10**6, orders=[Order(seq=1, kind="hold")])]
    until(lambda: ranks_alive(plane))
    inbox = node.home.attempt("n1", "r1", 1) / "inbox.json"
    assert [each.seq for each in Inbox.model_validate_json(inbox.read_bytes()).orders] == [1]
    plane.assignments = [assignment(steps=10**6, orders=[Order(seq=2, kind="release")])]
    until(lambda: len(Inbox.model_validate_json(inbox.read_bytes()).orders) == 2)
    plane.assignments = []
    until(lambda: exits(plane))


def test_a_workload_is_described_in_a_child(plane: FakeControlPlane, node: Node):
    def describe(number: int, **params: object) -> Chore:
        return Chore(id=number, kind="describe", args={"workload": "m:w", "params": params})

    plane.chores = [describe(1), describe(2, wrong=True), describe(3, crash=True)]
    until(lambda: len(plane.events("chore_done")) == 3)
    done = {each["id"]: each for each in plane.events("chore_done")}
    assert done[1]["ok"] is True
    assert done[1]["result"]["num_layers"] == 8
    assert done[2]["problems"] == [{"path": "params.wrong", "message": "is not known", "line": 3}]
    assert "exit code 70" in done[3]["because"]
    assert "the workload broke" in done[3]["log_tail"]


def test_a_node_measures_its_device_and_its_links(plane: FakeControlPlane, node: Node):
    until(lambda: plane.syncs)
    peers = {"elm": f"127.0.0.1:{plane.last.metrics_port}"}
    plane.chores = [Chore(id=4, kind="calibrate", args={"peers": peers})]
    until(lambda: plane.events("chore_done"), timeout_s=60)
    [done] = plane.events("chore_done")
    assert done["ok"] is True, done
    found = Calibration.model_validate(done["result"])
    assert found.flops["float32"].value > 0
    assert len(found.links["elm"].message_s) >= 3


def test_verify_and_retire_tell_why_they_cannot(
    plane: FakeControlPlane, node: Node, tmp_path: Path
):
    nothing = (tmp_path / "not-mounted" / "g1-step5").as_uri()
    plane.chores = [
        Chore(id=7, kind="verify", args={"location": nothing}),
        Chore(id=8, kind="retire", args={"location": tmp_path.as_uri()}),
    ]
    until(lambda: len(plane.events("chore_done")) == 2)
    verified, retired = sorted(plane.events("chore_done"), key=lambda each: each["id"])
    assert (verified["ok"], verified["retryable"]) == (False, True)
    assert (retired["code"], retired["retryable"]) == ("not_a_checkpoint", False)


def test_metrics_are_promised_shown_and_gone(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(ranks=2, steps=10**6)]
    until(lambda: len(ranks_alive(plane)) == 2 and len(plane.steps("r1/1/0")) > 3)

    def page() -> str:
        port = plane.last.metrics_port
        address = f"http://127.0.0.1:{port}/metrics"
        assert httpx.get(address, trust_env=False).status_code == 401
        headers = {"Authorization": f"Bearer {SCRAPE}"}
        return httpx.get(address, headers=headers, trust_env=False).text

    first = page()
    for name in PROMISED:
        assert f"# TYPE {name} " in first
    labels = 'node="n1",rank="0",replica="0",run="r1",stage="0"'
    until(lambda: "trainmaster_loss{" + labels in page())
    assert "trainmaster_failed_steps_total{" + labels + "} 1.0" in page()
    assert 'trainmaster_step{node="n1",rank="1",replica="1",run="r1",stage="0"}' in page()
    plane.assignments = []
    until(lambda: len(exits(plane)) == 2)
    ended = time.monotonic()
    until(lambda: 'run="r1"' not in page())
    assert time.monotonic() - ended < 15


def test_a_stopped_agent_tells_how_its_ranks_ended(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(ranks=2, steps=10**6)]
    until(lambda: len(ranks_alive(plane)) == 2)
    assert node.end() == 0
    assert len(exits(plane)) == 2
    assert {each["because"] for each in plane.events("rank_exited")} == {
        f"rank {rank} was ended by its agent: it stops" for rank in (0, 1)
    }
    assert node.home.processes() == []


def test_a_second_agent_on_the_same_node_is_refused(plane: FakeControlPlane, node: Node):
    until(lambda: plane.syncs)
    second = Node(node.home.root, plane)
    second.start()
    assert second.process is not None
    assert second.process.wait(timeout=20) != 0
    assert "another agent already runs" in node.told()


def test_an_unknown_token_is_said_plainly(plane: FakeControlPlane, tmp_path: Path):
    node = Node(tmp_path / "home", plane, token="wrong")
    node.start()
    until(lambda: (node.home.root / "agent.out").exists() and "unknown token" in node.told())
    assert "is its token one of role agent for node n1?" in node.told()
    assert node.end() == 0


@pytest.mark.slow
def test_a_real_store_is_hosted_and_closed(plane: FakeControlPlane, node: Node):
    plane.assignments = [assignment(store=None, hosts_store=True)]
    until(lambda: plane.syncs and any(each.store for each in plane.last.running), 60)
    host, _, port = plane.last.running[0].store.rpartition(":")
    from torch.distributed import TCPStore

    client = TCPStore(host, int(port), is_master=False)
    client.set("key", "value")
    assert client.get("key") == b"value"
    plane.assignments = []
    until(lambda: not plane.last.running)


def test_a_drill_cuts_the_link_and_training_goes_on(plane: FakeControlPlane, node: Node):
    drill = Drill(id=3, fault="disconnect", node="n1", duration_s=1.5)
    cut = assignment(steps=50).model_copy(update={"drills": [drill]})
    plane.assignments = [cut]
    until(lambda: plane.events("drill_fired"))
    until(lambda: exits(plane) == [(1, 0, 0, None)])
    assert plane.steps("r1/1/0") == list(range(1, 51))
    gaps = [b.sent_at - a.sent_at for a, b in zip(plane.syncs, plane.syncs[1:], strict=False)]
    assert max(gaps).total_seconds() > 1.0


def everything_once(plane: FakeControlPlane, steps: int) -> None:
    """Both ranks' steps are stored, each once, with what was not measured and what was no
    number."""
    until(lambda: len(exits(plane)) == 2)
    for rank in (0, 1):
        stream = plane.streams[f"r1/1/{rank}"]
        assert stream.steps == list(range(1, steps + 1))
        assert str(stream.values["loss"][1]) == "nan"
        assert stream.values["grad_norm"] == [None] * steps


def protocols(plane: FakeControlPlane) -> list[int]:
    return [sync.protocol for sync in plane.syncs]


def has_form(plane: FakeControlPlane, form: str) -> bool:
    return any(getattr(batch, form) for sync in plane.syncs for batch in sync.batches)


@pytest.mark.parametrize("plane", [1], indirect=True)
def test_a_control_plane_of_the_release_before_hears_only_what_it_knows(
    plane: FakeControlPlane, node: Node
):
    plane.assignments = [assignment(ranks=2, steps=20)]
    everything_once(plane, 20)
    assert set(protocols(plane)) == {1}
    assert plane.refused == 0
    assert has_form(plane, "samples")
    assert not has_form(plane, "packed")


def test_a_control_plane_put_back_to_the_release_before_and_forward_again_loses_nothing(
    plane: FakeControlPlane, node: Node
):
    plane.next_sync_s = 0.05
    plane.assignments = [assignment(ranks=2, steps=120)]
    until(lambda: has_form(plane, "packed"))
    plane.protocol = 1  # at once, between two syncs: a message on its way is refused
    until(lambda: has_form(plane, "samples"))
    assert plane.refused <= 1
    plane.protocol = PROTOCOL_VERSION
    seen = len(plane.syncs)
    until(lambda: PROTOCOL_VERSION in protocols(plane)[seen:])
    everything_once(plane, 120)
