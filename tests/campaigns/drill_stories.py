"""The stories of the drills: each inflicts one fault on a run that trains, waits for its end, and
says what was not as it should be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.campaigns.drill_account import (
    Account,
    Sign,
    account_of,
    fired_at,
    instant,
    shown_after,
)
from tests.campaigns.shut_door import Door
from tests.scenarios.ring import OAK, Ring, running, tiny, until
from tests.services.private_server import PrivateServer, free_port
from tests.services.s3 import Bucket

CUT_S = 150
CUT_ALONE_S = 40
AWAY_S = 25.0
DISK_MIB = 32
MOST_GENERATIONS = 8
KEEP_ALL = 100
"""So many checkpoints that none is retired: what is retired would make room on a full disk."""

TWO_NODES = [{**OAK, "slots": 2}, {**OAK, "name": "elm", "slots": 2}]
SLOW = {"layer_time_s": 0.017}
SLOW_NODES = [{**each, "emulate": SLOW} for each in TWO_NODES]
SLOW_NODE = [{**OAK, "emulate": SLOW}]

THREE_NODES = [*TWO_NODES, {**OAK, "name": "ash", "slots": 2}]
SMALL_NODE = [{**OAK, "emulate": {**OAK["emulate"], "memory_bytes": 4 << 20}}]
"""It claims less memory than a process takes, and more than the model is planned to need."""

RESTARTED = Sign(("run_recovering",))


class Story:
    """One run under one fault.

    Args:
        home: where its Trainmaster lives, empty.
        fault: what is done to it, in a few words.
        sign: how it is noticed.
    """

    def __init__(self, home: Path, corpus: Path, fault: str, sign: Sign) -> None:
        self.home = home
        self.corpus = corpus
        self.fault = fault
        self.sign = sign
        self.at: datetime | None = None
        self._wrong: list[str] = []

    @contextmanager
    def ring(self, nodes: Sequence[dict[str, Any]] = (OAK,), **settings: str) -> Iterator[Ring]:
        with running(self.home, nodes=nodes, **settings) as ring:
            yield ring

    def begin(self, ring: Ring, *, steps: int, until_step: int, **changes: Any) -> str:
        """Submit a run and wait until it has trained for a while."""
        spec = tiny("drilled", self.corpus, steps=steps)
        for section, values in changes.items():
            spec[section] = {**spec.get(section, {}), **values}
        run = ring.submit(spec)
        ring.wait_for_step(run, until_step)
        return run

    def drill(self, ring: Ring, run: str, fault: str, *options: object) -> None:
        ring.json("drill", run, fault, *options)
        self.at = until(lambda: fired_at(ring, run), within_s=60, what=f"the drill {fault}")

    def inflict(self) -> None:
        """The fault happens now."""
        self.at = datetime.now(UTC)

    def check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._wrong.append(otherwise)

    def wait_for_end(self, ring: Ring, run: str, state: str = "succeeded") -> dict[str, Any]:
        """Return the run once it has ended."""
        done = ring.wait_for(run, "succeeded", "failed", within_s=300)
        self.check(done["state"] == state, f"it ended as {done['state']}: {done['because']}")
        if state == "succeeded":
            steps = list(range(1, done["target_steps"] + 1))
            self.check(list(ring.losses(run)) == steps, "not every step is there once")
        return done

    def account(self, ring: Ring, run: str) -> Account:
        """Return what became of a run that has ended."""
        assert self.at is not None, "the fault has not happened"
        return account_of(ring, run, self.fault, self.at, self.sign, tuple(self._wrong))


def killed(home: Path, corpus: Path) -> Account:
    story = Story(home, corpus, "drill kill of rank 3", RESTARTED)
    with story.ring() as ring:
        run = story.begin(ring, steps=120, until_step=25)
        story.drill(ring, run, "kill", "--rank", 3)
        story.wait_for_end(ring, run)
        return story.account(ring, run)


def killed_again_and_again(home: Path, corpus: Path) -> Account:
    """Every generation dies before it has committed: the run stops rather than go in a circle."""
    story = Story(home, corpus, "rank 3 killed in every generation", RESTARTED)
    with story.ring() as ring:
        run = story.begin(ring, steps=500, until_step=25, checkpoint={"every_steps": 100})
        story.inflict()
        killed = 0
        while (shown := ring.show(run))["state"] != "failed":
            if shown["state"] == "running" and shown["generation"] > killed:
                killed = shown["generation"]
                os.kill(shown["ranks"][3]["pid"], signal.SIGKILL)
            assert killed <= MOST_GENERATIONS, "it goes in a circle"
            time.sleep(0.1)
        story.check(shown["code"] == "budget_exhausted", f"it ended as {shown['code']}")
        return story.account(ring, run)


def out_of_memory(home: Path, corpus: Path) -> Account:
    """It runs out of memory twice at the same place: another try would end so, too."""
    story = Story(home, corpus, "devices with less memory than the ranks take", RESTARTED)
    with story.ring(SMALL_NODE) as ring:
        run = ring.submit(tiny("drilled", corpus))
        done = story.wait_for_end(ring, run, "failed")
        story.at = instant(ring.events(run, "rank_failed")[0]["at"])
        story.check(done["code"] == "out_of_memory", f"it ended as {done['code']}")
        story.check(done["generation"] == 2, f"{done['generation']} generations")
        for way in ("parallel.micro_batch", "parallel.zero 1", "parallel.offload"):
            story.check(way in done["because"], f"{way} is not proposed: {done['because']}")
        return story.account(ring, run)


def bad_node(home: Path, corpus: Path) -> Account:
    """The same node fails the run at two starts in a row: it is cordoned, and others take over."""
    sign = Sign(("node_excluded",))
    story = Story(home, corpus, "the ranks of one of three nodes killed at two starts", sign)
    with story.ring(THREE_NODES) as ring:
        run = ring.submit(tiny("drilled", corpus, steps=60) | {"placement": {"nodes": 2}})
        victim = ""
        for generation in (1, 2):
            rank = until(partial(starting_rank, ring, run, generation, victim))
            victim = victim or rank["node"]
            os.kill(rank["pid"], signal.SIGKILL)
            story.inflict()
        done = story.wait_for_end(ring, run)
        used = {rank["node"] for rank in done["ranks"]}
        story.check(victim not in used, f"{victim} was used again: {sorted(used)}")
        [cordoned] = [node["name"] for node in ring.json("nodes") if node["cordoned"]]
        story.check(cordoned == victim, f"{cordoned} was cordoned, and not {victim}")
        return story.account(ring, run)


def starting_rank(ring: Ring, run: str, generation: int, node: str) -> dict[str, Any] | None:
    """Return a rank of a generation that has not begun to train, on `node` or on any but that of
    rank 0.
    """
    shown = ring.show(run)
    if shown["generation"] != generation or shown["state"] != "starting":
        return None
    first = shown["ranks"][0]["node"]
    return next(
        (
            each
            for each in shown["ranks"]
            if each["pid"] and (each["node"] == node if node else each["node"] != first)
        ),
        None,
    )


def hung(home: Path, corpus: Path) -> Account:
    story = Story(home, corpus, "drill hang of rank 2", Sign(("alert_firing",), "hang"))
    with story.ring() as ring:
        run = story.begin(ring, steps=120, until_step=25)
        story.drill(ring, run, "hang", "--rank", 2, "--for", "600s")
        story.wait_for_end(ring, run)
        return story.account(ring, run)


def slowed(home: Path, corpus: Path) -> Account:
    sign = Sign(("alert_firing",), "slow rank")
    story = Story(home, corpus, "drill slow of rank 2 for 20 s", sign)
    with story.ring() as ring:
        run = story.begin(ring, steps=300, until_step=40)
        story.drill(ring, run, "slow", "--rank", 2, "--for", "20s")
        done = story.wait_for_end(ring, run)
        assert story.at is not None
        # On a busy machine others are slow now and then as well, and are named in their turn.
        named = [each["data"]["scope"] for each in shown_after(ring, run, sign, story.at)]
        story.check(named[:1] == ["rank 2"], f"named as slow: {named}")
        story.check(done["generation"] == 1, "a rule that only warns did something")
        return story.account(ring, run)


def poisoned(home: Path, corpus: Path) -> Account:
    sign = Sign(("alert_firing",), "gradient not finite")
    story = Story(home, corpus, "drill nan on rank 1 for 5 steps", sign)
    with story.ring() as ring:
        run = story.begin(ring, steps=120, until_step=30)
        story.drill(ring, run, "nan", "--rank", 1)
        story.wait_for_end(ring, run)
        return story.account(ring, run)


def spiked(home: Path, corpus: Path) -> Account:
    sign = Sign(("alert_firing",), "gradient norm leads")
    story = Story(home, corpus, "drill spike on rank 1 for 5 steps", sign)
    with story.ring() as ring:
        run = story.begin(ring, steps=180, until_step=95)
        story.drill(ring, run, "spike", "--rank", 1)
        story.wait_for_end(ring, run)
        return story.account(ring, run)


def spiked_unclipped(home: Path, corpus: Path) -> Account:
    """Plain descent without clipping: the weights are thrown far off, and do not come back."""
    sign = Sign(("alert_firing",), "loss spike")
    story = Story(home, corpus, "the same without clipping, under plain sgd", sign)
    with story.ring() as ring:
        optimizer = {"name": "sgd", "lr": 6e-4, "warmup_steps": 5}
        run = story.begin(ring, steps=220, until_step=95, train={"optimizer": optimizer})
        story.drill(ring, run, "spike", "--rank", 1)
        done = story.wait_for_end(ring, run)
        story.check(done["generation"] >= 2, "it was not rolled back")
        story.check(bool(done["attempts"][-1]["skip"]), "nothing was changed")
        return story.account(ring, run)


def corrupted(home: Path, corpus: Path) -> Account:
    """The damaged checkpoint is the newest when a rank dies."""
    sign = Sign(("checkpoint_quarantined", "restore_failed"))
    story = Story(home, corpus, "drill corrupt, then rank 3 killed", sign)
    with story.ring() as ring:
        run = story.begin(ring, steps=300, until_step=25, checkpoint={"memory": "off"})
        story.drill(ring, run, "corrupt")
        bad = ring.events(run, "drill_fired")[0]["data"]["step"]
        os.kill(ring.show(run)["ranks"][3]["pid"], signal.SIGKILL)
        done = story.wait_for_end(ring, run)
        states = {each["step"]: each["state"] for each in ring.json("checkpoints", run)}
        story.check(states.get(bad) == "quarantined", f"checkpoint {bad} is {states.get(bad)}")
        restored = [each["data"]["step"] for each in ring.events(run, "checkpoint_restored")]
        story.check(bad not in restored, f"the damaged checkpoint {bad} was restored")
        story.check(done["generation"] >= 2, "no attempt followed")
        return story.account(ring, run)


def disconnected(home: Path, corpus: Path) -> Account:
    """The control link alone is cut: the run trains on, and nothing is restarted."""
    fault = f"drill disconnect of one of two nodes for {CUT_S} s"
    story = Story(home, corpus, fault, Sign(("run_unreachable",)))
    with story.ring(SLOW_NODES) as ring:
        run = story.begin(ring, steps=480, until_step=12, placement={"nodes": 2})
        ring.json("drill", run, "disconnect", "--node", "elm", "--for", f"{CUT_S}s")
        ring.wait_for(run, "unreachable")
        ring.wait_for(run, "running", within_s=CUT_S + 60)
        done = story.wait_for_end(ring, run)
        story.at = fired_at(ring, run)  # told by the agent, once it could speak again
        story.check(done["generation"] == 1, "a run that trained on was restarted")
        return story.account(ring, run)


def disconnected_alone(home: Path, corpus: Path) -> Account:
    """No other node can say that it lives; its heartbeat in the store does, and that is enough."""
    fault = f"drill disconnect of the only node for {CUT_ALONE_S} s"
    story = Story(home, corpus, fault, Sign(("run_unreachable",)))
    with story.ring(SLOW_NODE) as ring:
        run = story.begin(ring, steps=140, until_step=12)
        ring.json("drill", run, "disconnect", "--for", f"{CUT_ALONE_S}s")
        ring.wait_for(run, "unreachable")
        ring.wait_for(run, "running", within_s=CUT_ALONE_S + 60)
        done = story.wait_for_end(ring, run)
        story.at = fired_at(ring, run)
        story.check(done["generation"] == 1, "a run that trained on was restarted")
        return story.account(ring, run)


def node_lost(home: Path, corpus: Path) -> Account:
    """The agent dies, and with it its nest and its ranks; nobody starts them again."""
    story = Story(home, corpus, "one of two nodes gone (agent and ranks killed)", RESTARTED)
    with story.ring(TWO_NODES, TRAINMASTER_SUPERVISE="0") as ring:
        run = story.begin(ring, steps=200, until_step=25, placement={"nodes": 2, "min_nodes": 1})
        story.inflict()
        ring.kill("agent:elm")
        done = story.wait_for_end(ring, run)
        replicas = ring.show(run)["attempts"][-1]["plan"]["replicas"]
        story.check(replicas == 1, f"{replicas} replicas on what was left")
        story.check(done["generation"] == 2, f"{done['generation']} generations for one loss")
        return story.account(ring, run)


def disk_full(home: Path, corpus: Path) -> Account:
    """The disk of the checkpoints has no room for a while: checkpoints fail, training goes on."""
    sign = Sign(("checkpoint_failed",))
    story = Story(home, corpus, "no space on the disk of the checkpoints for a while", sign)
    disk = home.parent / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    try:
        with story.ring() as ring:
            run = story.begin(
                ring,
                steps=200,
                until_step=25,
                checkpoint={"store": disk.as_uri(), "keep_last": KEEP_ALL},
            )
            filler = disk / "filler"
            fill(filler)
            story.inflict()
            assert story.at is not None
            began = story.at
            failed = until(lambda: shown_after(ring, run, sign, began), what="a checkpoint to fail")
            alert = Sign(("alert_firing",), "checkpoints fail")
            until(lambda: shown_after(ring, run, alert, began), what="the alert")
            filler.unlink()
            done = story.wait_for_end(ring, run)
            stored = [each["data"]["step"] for each in ring.events(run, "checkpoint_committed")]
            story.check(max(stored) > failed[0]["data"]["step"], "no checkpoint followed")
            story.check(done["generation"] == 1, "a full disk ended an attempt")
            return story.account(ring, run)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


def store_away(home: Path, corpus: Path) -> Account:
    """The S3 API refuses connections for a while: saves wait for it, and no step is lost."""
    sign = Sign(("checkpoint_waited", "checkpoint_failed"))
    story = Story(home, corpus, f"the S3 store refuses connections for {AWAY_S:g} s", sign)
    with s3_behind_a_door(home.parent) as (bucket, door), story.ring(**bucket.environment) as ring:
        run = story.begin(ring, steps=200, until_step=25, checkpoint={"store": bucket.url})
        door.shut()
        story.inflict()
        time.sleep(AWAY_S)  # the story itself: nobody is there for a while
        door.open_again()
        done = story.wait_for_end(ring, run)
        newest = [each for each in ring.json("checkpoints", run) if each["step"] == 200]
        story.check(bool(newest), "the last checkpoint is not there")
        story.check(done["generation"] == 1, "a store that was away ended an attempt")
        return story.account(ring, run)


def stubborn(home: Path, corpus: Path) -> Account:
    """The same batches are NaN whatever is done: the ladder climbs, stops, and asks."""
    sign = Sign(("alert_firing",), "gradient not finite")
    story = Story(home, corpus, "drill nan on rank 1 for 60 steps, sticky", sign)
    with story.ring() as ring:
        run = story.begin(ring, steps=250, until_step=30)
        story.drill(ring, run, "nan", "--rank", 1, "--for", "60steps", "--sticky")
        done = story.wait_for_end(ring, run, "failed")
        story.check(done["code"] == "budget_exhausted", f"it ended as {done['code']}")
        story.check(done["generation"] <= 5, f"{done['generation']} generations")
        return story.account(ring, run)


STORIES: dict[str, Callable[[Path, Path], Account]] = {
    "kill": killed,
    "kills": killed_again_and_again,
    "memory": out_of_memory,
    "bad-node": bad_node,
    "hang": hung,
    "slow": slowed,
    "nan": poisoned,
    "spike": spiked,
    "spike-unclipped": spiked_unclipped,
    "corrupt": corrupted,
    "disconnect": disconnected,
    "disconnect-alone": disconnected_alone,
    "node-lost": node_lost,
    "disk-full": disk_full,
    "store-away": store_away,
    "stubborn": stubborn,
}


def fill(path: Path) -> None:
    """Write a file until the disk has no room left."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass


@contextmanager
def s3_behind_a_door(folder: Path) -> Iterator[tuple[Bucket, Door]]:
    """An S3 API with an empty bucket that is reached through a door."""
    port = free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = PrivateServer(argv, log=folder / "s3.log")
    try:
        address = f"http://127.0.0.1:{port}"
        if not server.wait_until(lambda: answers(address)):
            raise RuntimeError(f"the S3 API did not start:\n{server.tail()}")
        httpx.put(f"{address}/drills").raise_for_status()
        door = Door(port)
        yield Bucket(f"http://127.0.0.1:{door.port}", "drills"), door
        door.shut()
    finally:
        server.stop()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/moto-api/", timeout=2).status_code < 500
    except httpx.TransportError:
        return False
