"""All ranks must read the same data, and a resumed run what it began with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.distributed.ranks import FORKS, plan_of, started, tiny_spec, trained
from trainmaster.errors import ExitCode, SpecError
from worker.data.agreement import refuse_changed

TEXT, OTHER = "a" * 64, "b" * 64


def _agree(store: str, rank: int, sha256: str | None) -> None:
    import torch.distributed as dist

    from worker.data.agreement import agree

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    assert dist.group.WORLD is not None
    try:
        os._exit(0 if agree(sha256, dist.group.WORLD) == TEXT else 1)
    except SpecError as error:
        os._exit(2 if "rank 2 (bbbbbbbbbbbb)" in error.message else 3)


@pytest.mark.parametrize(
    ("digests", "outcome"), [((TEXT, None, TEXT), 0), ((TEXT, None, OTHER), 2)]
)
def test_ranks_that_read_different_texts_refuse_to_train(
    tmp_path: Path, digests: tuple[str | None, ...], outcome: int
) -> None:
    store = str(tmp_path / "store")
    ranks = [FORKS.Process(target=_agree, args=(store, n, d)) for n, d in enumerate(digests)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(30)
    assert [process.exitcode for process in ranks] == [outcome] * 3


def _same_code(store: str, rank: int, sha256: str) -> None:
    import torch.distributed as dist

    from worker.data.agreement import refuse_other_code

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    assert dist.group.WORLD is not None
    try:
        refuse_other_code(sha256, dist.group.WORLD)
        os._exit(0)
    except SpecError as error:
        told = "rank 1 has other code for it (sha256 bbbbbbbbbbbb) than rank 0 (aaaaaaaaaaaa)"
        os._exit(2 if told in error.message else 3)


@pytest.mark.parametrize(
    ("digests", "outcome"), [((TEXT, TEXT, TEXT), 0), ((TEXT, OTHER, TEXT), 2)]
)
def test_ranks_with_other_code_refuse_to_train(
    tmp_path: Path, digests: tuple[str, ...], outcome: int
) -> None:
    store = str(tmp_path / "store")
    ranks = [FORKS.Process(target=_same_code, args=(store, n, d)) for n, d in enumerate(digests)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(30)
    assert [process.exitcode for process in ranks] == [outcome] * 3


def _same_start(store: str, rank: int, samples: str | None, layers: list[str | None]) -> None:
    import torch.distributed as dist

    from worker.data.agreement import refuse_other_samples, refuse_other_weights

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    assert dist.group.WORLD is not None
    seen = 0
    try:
        refuse_other_samples(samples, dist.group.WORLD)
    except SpecError as error:
        told = "rank 2 sees other samples (sha256 bbbbbbbbbbbb) than rank 0 (aaaaaaaaaaaa)"
        seen += 1 if told in error.message else 4
    try:
        refuse_other_weights(layers, dist.group.WORLD)
    except SpecError as error:
        told = "layer 1 begins with other weights on rank 2 (sha256 bbbbbbbbbbbb) than on rank 1"
        seen += 2 if told in error.message else 8
    os._exit(seen)


@pytest.mark.parametrize(
    ("samples", "layers", "outcome"),
    [
        ((TEXT, None, TEXT), ([TEXT, None], [None, OTHER], [TEXT, OTHER]), 0),
        ((TEXT, None, OTHER), ([TEXT, None], [None, TEXT], [TEXT, OTHER]), 3),
    ],
)
def test_ranks_that_see_other_samples_or_begin_with_other_weights_refuse_to_train(
    tmp_path: Path,
    samples: tuple[str | None, ...],
    layers: tuple[list[str | None], ...],
    outcome: int,
) -> None:
    store = str(tmp_path / "store")
    ranks = [
        FORKS.Process(target=_same_start, args=(store, n, *told))
        for n, told in enumerate(zip(samples, layers, strict=True))
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(30)
    assert [process.exitcode for process in ranks] == [outcome] * 3


def test_a_text_that_changed_since_the_checkpoint_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the first text, repeated. " * 100)
    spec = tiny_spec(text, steps=2)
    resume = trained(tmp_path, spec, plan_of(spec)).newest()
    text.write_text("another text. " * 200)
    with started(tmp_path, spec, plan_of(spec), generation=2, resume=resume) as generation:
        assert generation.join() == [ExitCode.BAD_SPEC]
    [failed] = generation.events("rank_failed")
    assert "the text has changed since the checkpoint was taken" in failed["because"]


def test_what_nobody_knows_is_not_compared() -> None:
    refuse_changed(None, TEXT)
    refuse_changed(TEXT, None)
    refuse_changed(TEXT, TEXT)
