"""Faults inflicted on purpose, and what the ranks make of them."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from trainmaster.errors import ExitCode
from trainmaster.orders import Drill
from trainmaster.spool import is_missing
from worker.emulation import SLOW_FACTOR
from worker.launch import Emulation

PAIR = {"replicas": 2, "stages": 2}
LONG = 100_000


def test_a_non_finite_gradient_skips_the_update_on_all_ranks_in_the_same_step(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=6)
    drill = Drill(id=1, fault="nan", rank=3, at_step=3, steps=2)
    seen = trained(tmp_path, spec, plan_of(spec, **PAIR), drills=[drill])
    assert [event["step"] for event in seen.events("drill_fired", rank=3)] == [3, 4]
    for rank in range(4):
        assert seen.series("applied", rank) == [1, 1, 0, 0, 1, 1]
        norms = seen.series("grad_norm", rank)
        assert [math.isnan(norm) for norm in norms] == [False, False, True, True, False, False]
        assert not any(is_missing(norm) for norm in norms), "measured, not missing"
    skipped = seen.events("step_skipped")
    assert [(event["step"], event["batch"]) for event in skipped] == [(3, 3), (4, 4)]
    assert "rank 3 were not finite" in skipped[0]["because"]
    assert all(math.isfinite(loss) for loss in seen.series("loss"))
    assert seen.series("non_finite")[2] > 0


def test_a_skipped_update_changes_nothing_but_the_step(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, stages=2)
    drill = Drill(id=1, fault="nan", rank=0, at_step=3, steps=1)
    before = trained(tmp_path / "before", tiny_spec(corpus, steps=2), plan)
    after = trained(tmp_path / "after", spec, plan, drills=[drill])
    assert after.weights_sha256() == before.weights_sha256()


def test_a_spike_is_seen_in_the_gradient_norm_and_clipped(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=4)
    drill = Drill(id=1, fault="spike", rank=1, at_step=3, steps=1)
    seen = trained(tmp_path, spec, plan_of(spec, **PAIR), drills=[drill])
    norms = seen.series("grad_norm")
    assert norms[2] > 100 * norms[1]
    assert seen.series("applied") == [1, 1, 1, 1]


def test_a_sticky_drill_poisons_its_batches_and_no_others(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=4)
    drill = Drill(id=1, fault="nan", rank=0, sticky=True, batches=((3, 3), (7, 9)))
    plan = plan_of(spec)
    seen = trained(tmp_path / "meets", spec, plan, drills=[drill], skip=[(1, 1)])
    assert seen.series("applied") == [1, 0, 1, 1], "step 2 takes batch 3"
    [fired] = seen.events("drill_fired")
    assert (fired["step"], fired["batch"]) == (2, 3)
    spared = trained(tmp_path / "spared", spec, plan, drills=[drill], skip=[(3, 3)])
    assert spared.series("applied") == [1, 1, 1, 1]


def test_a_killed_rank_takes_the_others_with_it_as_lost_contact(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=LONG)
    drill = Drill(id=1, fault="kill", rank=2, at_step=3)
    with started(tmp_path, spec, plan_of(spec, **PAIR), drills=[drill]) as generation:
        codes = generation.join(within_s=20)
    assert codes[2] == -signal.SIGKILL
    assert [codes[rank] for rank in (0, 1, 3)] == [ExitCode.TRY_AGAIN] * 3
    assert generation.events("drill_fired", rank=2) != []
    for rank in (0, 1, 3):
        [failed] = generation.events("rank_failed", rank)
        assert failed["because"].startswith("lost contact with another rank")


def test_a_hung_rank_is_stopped_until_somebody_ends_it(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=LONG)
    drill = Drill(id=1, fault="hang", rank=1, at_step=2)
    with started(tmp_path, spec, plan_of(spec, stages=2), drills=[drill]) as generation:
        pid = generation.processes[1].pid
        assert pid is not None

        def stopped() -> bool:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        generation.wait_for(stopped)
        os.kill(pid, signal.SIGKILL)
        codes = generation.join(within_s=20)
    assert codes == [ExitCode.TRY_AGAIN, -signal.SIGKILL]


def test_a_slow_rank_computes_longer_and_the_numbers_stay(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=4)
    plan = plan_of(spec, replicas=2)
    drill = Drill(id=1, fault="slow", rank=1, at_step=3, duration_s=600)
    paced = {1: Emulation(layer_time_s=0.005)}
    slow = trained(tmp_path / "slow", spec, plan, drills=[drill], emulation=paced)
    twin = trained(tmp_path / "twin", spec, plan)
    # Four micro-batches through four layers, forward once and backward twice the time.
    usual_s = 4 * 4 * 3 * 0.005
    assert min(slow.series("compute_s", rank=1)[2:]) >= SLOW_FACTOR * usual_s - 1e-9
    assert [event["step"] for event in slow.events("drill_fired", rank=1)] == [3]
    assert slow.weights_sha256() == twin.weights_sha256()


def test_a_corrupted_checkpoint_is_refused_when_it_is_needed(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=4)
    plan = plan_of(spec, stages=2)
    drill = Drill(id=1, fault="corrupt", at_step=4)
    first = trained(tmp_path, spec, plan, checkpoint_every=2, drills=[drill])
    [fired] = first.events("drill_fired")
    with started(tmp_path, spec, plan, generation=2, resume=first.newest()) as generation:
        codes = generation.join()
    assert ExitCode.INTEGRITY in codes
    failed = [event for rank in (0, 1) for event in generation.events("restore_failed", rank)]
    assert [event["file"] for event in failed] == [fired["file"]]
