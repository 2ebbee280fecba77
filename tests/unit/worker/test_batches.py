"""Replicas together read each batch once, in order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.errors import SpecError
from worker.data.batches import BatchReader
from worker.devices import ComputeDevice

DATASET = [(torch.tensor(n), torch.tensor(-n)) for n in range(23)]


def reader(
    positions: tuple[int, int], *, inputs: bool = True, targets: bool = True, padding: int = 0
) -> BatchReader:
    return BatchReader(
        DATASET if inputs or targets else None,
        seed=3,
        batch_size=8,
        positions=positions,
        size=positions[1] - positions[0] + padding,
        wants_inputs=inputs,
        wants_targets=targets,
        device=ComputeDevice("cpu"),
    )


@settings(deadline=None, max_examples=30)
@given(cut=st.integers(1, 7), batch=st.integers(1, 100))
def test_shares_make_up_the_batch_wherever_it_is_cut(cut: int, batch: int) -> None:
    whole = reader((0, 8)).read(batch).inputs
    first, last = reader((0, cut)).read(batch).inputs, reader((cut, 8)).read(batch).inputs
    assert whole is not None
    assert first is not None
    assert last is not None
    assert torch.equal(whole, torch.cat([first, last]))


def test_inputs_and_targets_belong_to_the_same_samples_on_different_ranks() -> None:
    inputs = reader((0, 4), targets=False).read(5)
    targets = reader((0, 4), inputs=False).read(5)
    assert inputs.targets is None
    assert targets.inputs is None
    assert inputs.inputs is not None
    assert targets.targets is not None
    assert torch.equal(inputs.inputs, -targets.targets)


def test_a_rank_in_the_middle_reads_nothing() -> None:
    share = reader((0, 4), inputs=False, targets=False).read(1)
    assert (share.inputs, share.targets) == (None, None)


def test_a_dataset_shorter_than_one_batch_is_refused_with_both_numbers() -> None:
    with pytest.raises(SpecError, match="holds 23 samples, fewer than one batch of 24"):
        BatchReader(
            DATASET,
            seed=0,
            batch_size=24,
            positions=(0, 24),
            size=24,
            wants_inputs=True,
            wants_targets=True,
            device=ComputeDevice("cpu"),
        )


def test_a_dataset_without_samples_is_refused() -> None:
    with pytest.raises(SpecError, match="holds no samples"):
        BatchReader(
            [],
            seed=0,
            batch_size=1,
            positions=(0, 1),
            size=1,
            wants_inputs=True,
            wants_targets=True,
            device=ComputeDevice("cpu"),
        )


def test_padding_repeats_the_last_sample_of_a_share() -> None:
    whole, padded = reader((5, 8)).read(2), reader((5, 8), padding=2).read(2)
    assert whole.inputs is not None
    assert padded.inputs is not None
    assert torch.equal(padded.inputs[:3], whole.inputs)
    assert all(torch.equal(each, whole.inputs[-1]) for each in padded.inputs[3:])
    assert padded.targets is not None
    assert len(padded.targets) == 5
