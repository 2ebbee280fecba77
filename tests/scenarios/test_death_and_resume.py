"""Kill -9 of anything: the run goes on by itself, and ends with the same bits as its undisturbed
twin.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

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


KILLS = (kill_one_rank, kill_rank_zero, kill_all_ranks, kill_nest, kill_agent)


def test_whatever_is_killed_the_run_goes_on_and_ends_with_the_bits_of_its_twin(
    ring: Ring, twin, corpus: Path
):
    run = ring.submit(tiny("killed", corpus))
    safe = 10
    for generation, kill in enumerate(KILLS, start=1):
        ring.wait_for_step(run, safe + 5, generation=generation)
        ring.wait_for_checkpoint(run, safe)
        kill(ring, run)
        attempt = ring.wait_for_generation(run, generation + 1)
        assert attempt["cause"], "the reason is told in words"
        assert attempt["resumed_from_step"] >= safe, kill.__name__
        safe = attempt["resumed_from_step"] + 10
    done = ring.wait_for(run, "succeeded")
    assert done["generation"] == len(KILLS) + 1, done["attempts"]
    assert "rank 3 killed by signal 9" in done["attempts"][1]["cause"]
    assert done["weights_sha256"] == twin["weights_sha256"]
    assert same_losses(ring.losses(run), twin["losses"]) == []
    restored = ring.events(run, "checkpoint_restored")
    resumed = [each["resumed_from_step"] for each in done["attempts"][1:]]
    assert [each["data"]["step"] for each in restored] == resumed
    assert restored[-1]["data"]["source"] == "store", "an agent's memory ends with it"


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


DAMAGES = (damage_by_a_flipped_bit, damage_by_a_missing_file, damage_by_truncation)


def test_damaged_checkpoints_are_quarantined_and_the_one_before_is_used(
    ring: Ring, twin, corpus: Path
):
    spec = tiny("damaged", corpus)
    spec["checkpoint"] |= {"keep_last": len(DAMAGES) + 1}
    run = ring.submit(spec)
    ring.wait_for_step(run, 45)
    ring.json("pause", run)
    good = [each for each in ring.json("checkpoints", run) if each["state"] in GOOD]
    before, *damaged = good[-1 - len(DAMAGES) :]
    for damage, each in zip(DAMAGES, damaged, strict=True):
        damage(Path(each["location"].removeprefix("file://")))
    ring.json("resume", run)
    done = ring.wait_for(run, "succeeded")
    states = {each["id"]: each for each in ring.json("checkpoints", run)}
    for each in damaged:
        assert states[each["id"]]["state"] == "quarantined", each
        assert "safetensors" in states[each["id"]]["because"]
    assert done["attempts"][-1]["resumed_from_step"] == before["step"]
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
