"""A whole run over HTTP, from submit to succeeded, with a node that only pretends to train."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control.clock import SystemClock
from control.db.sql.engine import Database
from tests.integration.control.api import AGENT, SPEC, FakeNode, Plane, plane, stream_of
from tests.integration.control.scene import columns, event
from trainmaster.home import Home
from trainmaster.wire import Assignment, Running, SyncReply


def until(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within 60 s: {what}")


def assigned(node: FakeNode, generation: int) -> Assignment:
    def look() -> Assignment | None:
        reply: SyncReply = node.turn()
        found = [each for each in reply.assignments if each.generation == generation]
        return found[0] if found else None

    found: Assignment = until(look, f"generation {generation} to be assigned")
    return found


def start(node: FakeNode, assignment: Assignment) -> None:
    run, generation = assignment.run, assignment.generation
    pids = {each.rank: 1000 + each.rank for each in assignment.ranks}
    store = "127.0.0.1:4321" if assignment.hosts_store else None
    node.running = [Running(run=run, generation=generation, store=store, ranks=pids)]
    told = [event("rank_ready", step=0, pid=pid) for pid in pids.values()]
    node.sync(
        *(
            (stream_of(assignment, rank), None, [ready])
            for rank, ready in zip(pids, told, strict=True)
        )
    )


def train(node: FakeNode, assignment: Assignment, steps: range, **events: Any) -> None:
    count = len(steps)
    told = columns(
        steps, loss=[2.0] * count, grad_norm=[1.0] * count, applied=[1.0] * count,
        tokens=[8.0] * count, step_time_s=[0.5] * count,
    )  # fmt: skip
    node.sync(
        *(
            (
                stream_of(assignment, each.rank),
                told,
                events.get("rank0", []) if not each.rank else [],
            )
            for each in assignment.ranks
        )
    )


def leave(node: FakeNode, assignment: Assignment, **how: Any) -> None:
    node.running = []
    ends = [
        event(
            "rank_exited",
            run=assignment.run,
            generation=assignment.generation,
            rank=each.rank,
            **how,
        )
        for each in assignment.ranks
    ]
    node.sync((AGENT, None, ends))


def commit(assignment: Assignment, step: int) -> Any:
    return event(
        "checkpoint_committed",
        step=step,
        location=f"{assignment.checkpoint_root}/g{assignment.generation}-step{step}",
        manifest_sha256="sha256:" + "0" * 64,
        bytes=8,
        files=2,
    )


def state(here: Plane, run: str) -> str:
    return str(here.admin.get(f"/v1/runs/{run}")["state"])


def test_a_run_is_queued_started_killed_resumed_and_succeeds(db: Database, tmp_path: Path) -> None:
    with plane(db, Home(tmp_path / "home"), SystemClock(), leads=True) as here:
        run = here.admin.post("/v1/runs", {"spec": SPEC}, expect=201)["id"]
        until(
            lambda: "describe" in here.admin.get(f"/v1/runs/{run}")["because"], "what it waits for"
        )
        node = FakeNode(here.as_node("n1"))

        first = assigned(node, 1)
        assert (first.world_size, first.hosts_store, first.resume) == (2, True, None)
        assert [each.slot for each in first.ranks] == [0, 1]
        start(node, first)
        until(lambda: state(here, run) == "running", "the ranks to be known as ready")
        assert assigned(node, 1).store == "127.0.0.1:4321"
        train(node, first, range(1, 13), rank0=[commit(first, 10)])
        leave(node, first, signal=9)

        second = assigned(node, 2)
        assert second.resume is not None
        assert (second.resume.step, second.resume.checkpoint) == (10, f"{run}-g1-s10")
        start(node, second)
        train(node, second, range(11, 21), rank0=[commit(second, 20)])
        finish = [event("rank_finished", step=20, ordered=False, weights_sha256="sha256:ab")]
        node.sync(
            *(
                (stream_of(second, each.rank), None, finish if not each.rank else [finish[0]])
                for each in second.ranks
            )
        )
        leave(node, second, exit_code=0)
        until(lambda: state(here, run) == "succeeded", "the end")
        assert node.turn().assignments == []

        shown = here.admin.get(f"/v1/runs/{run}")
        assert (shown["step"], shown["loss"], shown["skipped_steps"]) == (20, 2.0, 0)
        assert shown["weights_sha256"] == "sha256:ab"
        assert shown["tokens_per_s"] == 16.0
        one, two = shown["attempts"]
        assert "rank 0 killed by signal 9" in two["cause"] + one["because"]
        assert (two["resumed_from_step"], two["parent_generation"]) == (10, 1)
        points = here.admin.get(f"/v1/runs/{run}/series", metric="loss", points=100)["points"]
        assert [point[1] for point in points] == list(range(1, 21))
        kinds = [each["kind"] for each in here.admin.get(f"/v1/runs/{run}/events")]
        assert kinds[0] == "run_submitted"
        assert "run_succeeded" in kinds
        goodput = shown["goodput"]
        buckets = {k: v for k, v in goodput.items() if k not in {"wall_s", "productive_ratio"}}
        assert abs(sum(buckets.values()) - goodput["wall_s"]) < 1e-6


def test_pause_is_received_and_applied_and_frees_the_slots(db: Database, tmp_path: Path) -> None:
    with plane(db, Home(tmp_path / "home"), SystemClock(), leads=True) as here:
        node = FakeNode(here.as_node("n1"))
        node.turn()
        with node.in_background():
            run = here.admin.post("/v1/runs", {"spec": SPEC}, expect=201)["id"]
        assignment = assigned(node, 1)
        start(node, assignment)
        train(node, assignment, range(1, 6))
        until(lambda: state(here, run) == "running", "running")
        asked = here.admin.post(f"/v1/runs/{run}/requests", {"kind": "pause"}, expect=202)
        orders = until(lambda: assigned(node, 1).orders, "the order")
        told = [
            event("order_received", seq=orders[0].seq),
            event("order_applied", seq=orders[0].seq, step=6),
            commit(assignment, 6),
            event("rank_finished", step=6, ordered=True),
        ]
        other = [event("rank_finished", step=6, ordered=True)]
        node.sync(
            *(
                (stream_of(assignment, r.rank), None, other if r.rank else told)
                for r in assignment.ranks
            )
        )
        leave(node, assignment, exit_code=0)
        done = until(
            lambda: (
                (found := here.admin.get(f"/v1/requests/{asked['id']}"))["state"] == "applied"
                and found
            ),
            "the pause",
        )
        assert done["step"] == 6
        assert state(here, run) == "paused"
        assert here.admin.get("/v1/nodes")[0]["taken"] == []
        assert here.admin.get("/v1/runs/" + run + "/requests")[0]["order"]["state"] == "applied"
