"""The order of samples is a pure function, and shows every sample once per epoch."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.data.order import permute, sample_indices

sizes = st.integers(1, 400)
seeds = st.integers(0, 2**63 - 1)


@settings(deadline=None, max_examples=50)
@given(size=sizes, key=st.integers(0, 2**64 - 1))
def test_a_permutation_reaches_every_place_once(size: int, key: int) -> None:
    places = permute(np.arange(size, dtype=np.uint64), key=key, size=size)
    assert sorted(places.tolist()) == list(range(size))


@settings(deadline=None, max_examples=50)
@given(seed=seeds, num_samples=sizes, batch_size=st.integers(3, 97), epochs=st.integers(1, 3))
def test_every_epoch_shows_every_sample_once_wherever_batches_are_cut(
    seed: int, num_samples: int, batch_size: int, epochs: int
) -> None:
    wanted = num_samples * epochs
    batches = range(1, -(-wanted // batch_size) + 1)
    order = np.concatenate(
        [
            sample_indices(seed=seed, batch=b, batch_size=batch_size, num_samples=num_samples)
            for b in batches
        ]
    )
    for epoch in range(epochs):
        shown = order[epoch * num_samples : (epoch + 1) * num_samples]
        assert sorted(shown.tolist()) == list(range(num_samples))


@settings(deadline=None, max_examples=50)
@given(seed=seeds, num_samples=sizes, batch=st.integers(1, 10**9), batch_size=st.integers(1, 64))
def test_a_batch_depends_on_its_arguments_alone(
    seed: int, num_samples: int, batch: int, batch_size: int
) -> None:
    def draw() -> list[int]:
        indices = sample_indices(
            seed=seed, batch=batch, batch_size=batch_size, num_samples=num_samples
        )
        return [int(index) for index in indices]

    assert draw() == draw()


def test_the_size_of_a_batch_cuts_the_same_order() -> None:
    def order(batch_size: int, count: int) -> list[int]:
        parts = [
            sample_indices(seed=3, batch=b, batch_size=batch_size, num_samples=50)
            for b in range(1, count + 1)
        ]
        return [int(index) for part in parts for index in part]

    assert order(4, 30) == order(8, 15) == order(120, 1)


def test_seeds_and_epochs_are_in_different_orders() -> None:
    def first(seed: int, batch: int) -> list[int]:
        indices = sample_indices(seed=seed, batch=batch, batch_size=1000, num_samples=1000)
        return [int(index) for index in indices]

    assert first(0, 1) != first(1, 1)
    assert first(0, 1) != first(0, 2)


def test_an_order_looks_random_enough_to_train_on() -> None:
    size = 10_000
    places = permute(np.arange(size, dtype=np.uint64), key=1, size=size)
    correlation = np.corrcoef(np.arange(size), places)[0, 1]
    assert abs(correlation) < 0.05
    # Neighbours stay neighbours in about 2 of `size` cases under a random permutation.
    assert int((np.abs(np.diff(places)) == 1).sum()) < 15


def test_the_order_is_fixed_for_good() -> None:
    """Resuming an old run must give the old order: these numbers may never change."""
    indices = sample_indices(seed=0, batch=1, batch_size=8, num_samples=1000)
    assert indices.tolist() == GOLDEN


GOLDEN = [585, 951, 130, 409, 899, 468, 21, 544]
