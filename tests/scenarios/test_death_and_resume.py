"""Kill -9 of anything: the run goes on by itself, and ends with the same bits as its undisturbed
twin.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.scenarios.ring import Ring, same_losses, tiny

GOOD = {"committed", "trusted"}


def kill_one_rank(ring: Ring, run: str) -> None:
    os.kill(ring.show(run)["ranks"][3]["pid"], signal.SIGKILL)


def kill_rank_zero(ring: Ring, run: str) -> None:
    os.kill(ring.show(run)["ranks"][0]["pid"], signal.SIGKILL)


def kill_all_ranks(ring: Ring, run: str) -> None:
    for rank in ring.show(run)["ranks"]:
        os.kill(rank["pid"], signal.SIGKILL)


def kill_nest(ring: Ring, run: str) -> None:
    ring.kill("nest:oak")


def kill_agent(ring: Ring, run: str) -> None:
    ring.kill("agent:oak")


@pytest.mark.parametrize(
    "kill", [kill_one_rank, kill_rank_zero, kill_all_ranks, kill_nest, kill_agent]
)
def test_the_run_goes_on_and_ends_with_the_bits_of_its_twin(ring: Ring, twin, corpus: Path, kill):
    run = ring.submit(tiny(kill.__name__, corpus))
    ring.wait_for_step(run, 35)
    ring.wait_for_checkpoint(run, 30)
    kill(ring, run)
    done = ring.wait_for(run, "succeeded")
    assert done["generation"] == 2, done["attempts"]
    assert done["weights_sha256"] == twin["weights_sha256"]
    assert same_losses(ring.losses(run), twin["losses"]) == []
    cause = done["attempts"][1]["cause"]
    assert cause, "the reason is told in words"
    assert done["attempts"][1]["resumed_from_step"] >= 30
    [restored] = ring.events(run, "checkpoint_restored")
    assert restored["data"]["step"] == done["attempts"][1]["resumed_from_step"]
    if kill is kill_agent:
        assert restored["data"]["source"] == "store", "an agent's memory ends with it"


def test_the_cause_names_the_rank_and_the_signal(ring: Ring, corpus: Path):
    run = ring.submit(tiny("named", corpus))
    ring.wait_for_step(run, 15)
    kill_one_rank(ring, run)
    done = ring.wait_for(run, "succeeded")
    assert "rank 3 killed by signal 9" in done["attempts"][1]["cause"]


def damage_by_a_flipped_bit(folder: Path) -> None:
    victim = next(folder.glob("*.safetensors"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)


def damage_by_a_missing_file(folder: Path) -> None:
    next(folder.glob("*.safetensors")).unlink()


def damage_by_truncation(folder: Path) -> None:
    victim = next(folder.glob("*.safetensors"))
    victim.write_bytes(victim.read_bytes()[:-1000])


@pytest.mark.parametrize(
    "damage", [damage_by_a_flipped_bit, damage_by_a_missing_file, damage_by_truncation]
)
def test_a_damaged_checkpoint_is_quarantined_and_the_one_before_is_used(
    ring: Ring, twin, corpus: Path, damage
):
    run = ring.submit(tiny(damage.__name__, corpus))
    ring.wait_for_step(run, 35)
    ring.json("pause", run)
    newest = [each for each in ring.json("checkpoints", run) if each["state"] in GOOD][-1]
    damage(Path(newest["location"].removeprefix("file://")))
    ring.json("resume", run)
    done = ring.wait_for(run, "succeeded")
    states = {each["id"]: each for each in ring.json("checkpoints", run)}
    assert states[newest["id"]]["state"] == "quarantined"
    assert "safetensors" in states[newest["id"]]["because"]
    assert done["attempts"][-1]["resumed_from_step"] < newest["step"]
    assert done["weights_sha256"] == twin["weights_sha256"]


def test_the_golden_run_killed_restored_and_paused_equals_the_straight_one(
    ring: Ring, twin, corpus: Path
):
    run = ring.submit(tiny("golden", corpus))
    ring.wait_for_step(run, 25)
    kill_one_rank(ring, run)
    ring.wait_for_step(run, 55, generation=2)
    ring.json("pause", run, "--hold")  # the target must not be retired meanwhile
    alive = [each for each in ring.json("checkpoints", run) if each["state"] in GOOD]
    ring.json("restore", run, alive[-2]["id"])
    ring.wait_for_step(run, alive[-2]["step"] + 15, generation=3)
    ring.json("pause", run)
    assert ring.show(run)["state"] == "paused"
    ring.json("resume", run)
    done = ring.wait_for(run, "succeeded")
    assert done["weights_sha256"] == twin["weights_sha256"]
    assert same_losses(ring.losses(run), twin["losses"]) == []
