"""What a node sees of its neighbours, past the control plane."""

from __future__ import annotations

import socket
from concurrent.futures import Executor, Future
from pathlib import Path

from tests.fakes.snapshots import plan
from trainmaster.spec import RunSpec
from trainmaster.wire import Assignment
from worker.agent.neighbours import EVERY_S, TOLD_EVERY_S, Neighbours, ring_after


class AtOnce(Executor):
    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def, override]
        future: Future[object] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Neighbour:
    """A listening socket that may be closed."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"


def assignment(root: Path, **neighbours: str) -> Assignment:
    spec = RunSpec.model_validate(
        {"name": "a", "workload": "a:b", "train": {"steps": 1, "global_batch": 64}}
    )
    return Assignment(
        run="r1",
        generation=1,
        world_size=4,
        hosts_store=True,
        store=None,
        ranks=[],
        spec=spec,
        plan=plan(),
        resume=None,
        checkpoint_every=10,
        checkpoint_root=root.as_uri(),
        neighbours=neighbours,
    )


def test_a_node_looks_after_those_behind_it_in_the_ring():
    assert ring_after("elm", ["oak", "ash", "fir", "elm"]) == ["fir", "oak", "ash"]
    assert ring_after("oak", ["ash"]) == ["ash"]


def test_a_neighbour_that_answered_and_does_not_any_more_is_counted(tmp_path: Path):
    oak = Neighbour()
    watch = Neighbours("elm", executor=AtOnce(), wake=lambda: None)
    assigned = [assignment(tmp_path, oak=oak.address)]
    watch.look(assigned, 0.0, cut_off=False)
    watch.look(assigned, EVERY_S, cut_off=False)
    told = watch.news(EVERY_S)
    assert told["oak"].answers
    assert told["oak"].ever
    assert watch.news(EVERY_S) == {}, "nothing new"
    assert watch.news(EVERY_S + TOLD_EVERY_S).keys() == {"oak"}, "but now and then it is said"
    oak.socket.close()
    for turn in range(2, 6):
        watch.look(assigned, turn * EVERY_S, cut_off=False)
    seen = watch.news(99.0)["oak"]
    assert not seen.answers
    assert seen.refused
    assert seen.failures >= 3
    assert seen.ever


def test_one_that_was_never_reached_is_no_evidence(tmp_path: Path):
    oak = Neighbour()
    oak.socket.close()
    watch = Neighbours("elm", executor=AtOnce(), wake=lambda: None)
    assigned = [assignment(tmp_path, oak=oak.address)]
    watch.look(assigned, 0.0, cut_off=False)
    watch.look(assigned, EVERY_S, cut_off=False)
    assert not watch.news(9.0)["oak"].ever


def test_who_is_cut_off_says_in_the_store_that_it_lives_and_neighbours_read_it(tmp_path: Path):
    closed = Neighbour()
    closed.socket.close()
    oak = Neighbours("oak", executor=AtOnce(), wake=lambda: None)
    elm = Neighbours("elm", executor=AtOnce(), wake=lambda: None)
    seen = []
    for turn in range(4):
        now = turn * EVERY_S
        oak.look([assignment(tmp_path, elm=closed.address)], now, cut_off=True)
        elm.look([assignment(tmp_path, oak=closed.address)], now, cut_off=False)
        seen.append(elm.news(now + 100 * turn).get("oak"))
    assert seen[-1] is not None
    assert seen[-1].stored, "it changes from look to look"
    assert (tmp_path / "heartbeats" / "oak").read_text() == "4"
    for turn in range(4, 7):
        elm.look([assignment(tmp_path, oak=closed.address)], turn * EVERY_S, cut_off=False)
    assert not elm.news(9999.0)["oak"].stored, "it does not change any more"


def test_a_generation_on_one_node_has_no_neighbour(tmp_path: Path):
    watch = Neighbours("elm", executor=AtOnce(), wake=lambda: None)
    watch.look([assignment(tmp_path)], 0.0, cut_off=True)
    assert watch.news(0.0) == {}
    assert not (tmp_path / "heartbeats").exists()
