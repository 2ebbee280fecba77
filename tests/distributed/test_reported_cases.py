"""Failures that others met when they resumed (docs/cases.md): killed three times within two epochs,
a run consumes the samples, and computes the bits, of one that was never interrupted.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from safetensors.torch import load_file

from tests.distributed.logged import SAMPLES
from tests.distributed.ranks import Generation, started, trained
from trainmaster.orders import Drill
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from worker.launch import Emulation

BATCH, EPOCH, STEPS = 4, 10, 20
PLAN = resolve(
    ParallelAsk.model_validate({"replicas": 2, "micro_batch": 1}), num_layers=2, global_batch=BATCH
)
KILLED_AT = (8, 13, 14)
"""With a checkpoint every five steps: to go on from within the first epoch, and then from its end
and to be killed within the second.
"""
PACE = Emulation(layer_time_s=0.02)
"""Steps slow enough for a checkpoint to be committed before the kill, on most machines; where it is
not, the run goes on from the one before, with the same samples and bits.
"""


def spec_of(folder: Path, samples: int = SAMPLES, **train: Any) -> RunSpec:
    folder.mkdir(parents=True)
    optimizer = {"lr": 0.01, "warmup_steps": 3, "decay": "cosine"}
    return RunSpec.model_validate(
        {
            "name": "logged",
            "workload": "tests.distributed.logged:workload",
            "params": {"folder": str(folder), "samples": samples},
            "train": {
                "steps": STEPS,
                "global_batch": BATCH,
                "seed": 7,
                "optimizer": optimizer,
                **train,
            },
        }
    )


SHARE = BATCH // PLAN.replicas


def reads_of(folder: Path, generation: Generation) -> list[list[int]]:
    """Return what each rank has read, in order."""
    paths = [folder / f"{process.pid}.reads" for process in generation.processes]
    return [[int(line) for line in path.read_text().split()] for path in paths]


def consumed(reads: list[list[int]], steps: int, *, before: int) -> list[set[int]]:
    """Return the samples of each step.

    Args:
        before: samples that each rank reads before its first step.
    """
    found: list[set[int]] = [set() for _ in range(steps)]
    for own in reads:
        for step, seen in enumerate(found):
            first = before + step * SHARE
            seen |= set(own[first : first + SHARE])
    return found


def test_killed_three_times_it_sees_each_sample_once_an_epoch_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "reads"
    spec = spec_of(folder)
    straight = trained(tmp_path / "straight", spec, PLAN)
    reads = reads_of(folder, straight)
    before = len(reads[0]) - SHARE * STEPS
    expected = consumed(reads, STEPS, before=before)

    seen: list[set[int]] = []
    losses, rates, norms = [], [], []
    resume, begun = None, 0
    for number, killed in enumerate([*KILLED_AT, None], start=1):
        drills = [Drill(id=1, fault="kill", rank=0, at_step=killed)] if killed else []
        with started(
            tmp_path / "cut",
            spec,
            PLAN,
            generation=number,
            resume=resume,
            checkpoint_every=5,
            drills=drills,
            emulation=dict.fromkeys(range(PLAN.world_size), PACE),
        ) as generation:
            codes = generation.join()
        assert codes[0] == (-signal.SIGKILL if drills else 0)
        assert next(iter(generation.rows())) == begun + 1, "the step after the checkpoint's"
        if generation.events("checkpoint_committed"):
            resume = generation.newest()
        resumed = resume.step if resume else 0
        seen += consumed(reads_of(folder, generation), resumed - begun, before=before)
        rows = [row for step, row in generation.rows().items() if step <= resumed]
        losses += [row["loss"] for row in rows]
        rates += [row["lr"] for row in rows]
        norms += [row["grad_norm"] for row in rows]
        begun = resumed

    assert resume is not None
    assert seen == expected
    for epoch in range(STEPS // EPOCH):
        steps = seen[epoch * EPOCH : (epoch + 1) * EPOCH]
        assert sum(map(len, steps)) == len(set.union(*steps)) == SAMPLES
    assert losses == straight.series("loss")
    assert norms == straight.series("grad_norm")
    assert rates == straight.series("lr")
    assert generation.weights_sha256() == straight.weights_sha256()

    tensors = load_file(Path(urlsplit(resume.location).path) / "rank-00000.safetensors")
    counts = {int(value) for name, value in tensors.items() if name.endswith("/step")}
    assert counts == {STEPS}, "the optimizer's own counter went on"


def test_a_w17_samples_that_no_batch_divides_are_all_seen_and_the_run_ends(tmp_path: Path) -> None:
    """101 samples in batches of 10: the last batch of an epoch goes on in the next one."""
    folder = tmp_path / "reads"
    spec = spec_of(folder, samples=101, steps=11, global_batch=10)
    ask = ParallelAsk.model_validate({"replicas": 2, "micro_batch": 5})
    seen = trained(tmp_path, spec, resolve(ask, num_layers=2, global_batch=10))
    assert seen.series("tokens") == [10.0] * 11
    reads = [own[len(own) - 5 * 11 :] for own in reads_of(folder, seen)]
    order = [index for step in range(11) for own in reads for index in own[5 * step : 5 * step + 5]]
    assert sorted(order[:101]) == list(range(101)), "each once before any comes again"
    assert len(set(order[101:])) == 9
