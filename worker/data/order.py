"""The order of samples: a pure function of the seed. Epochs follow each other; each shows every
sample once.

Batch b holds the positions (b - 1) * B to b * B - 1 of an endless sequence. Position p lies in
epoch p // N, and within an epoch the samples stand in a keyed permutation of range(N), which is
computed for one position at a time: a Feistel network over the smallest even number of bits that
holds N, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains",
2002, section 5). Nothing is stored, so a corpus of any size costs the same, and no library's
generator can change the order.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.model.mixing import mix

_ROUNDS: Final = 6
_U64 = np.uint64


def sample_indices(
    *, seed: int, batch: int, batch_size: int, num_samples: int
) -> NDArray[np.int64]:
    """Return the indices of the samples of `batch` (numbered from 1), in order; shape
    (batch_size,).
    """
    assert batch >= 1, f"batches are numbered from 1, not {batch}"
    assert num_samples >= 1, "an order needs samples"
    first = (batch - 1) * batch_size
    indices = np.empty(batch_size, dtype=np.int64)
    position = first
    while position < first + batch_size:
        epoch, within = divmod(position, num_samples)
        count = min(num_samples - within, first + batch_size - position)
        places = np.arange(within, within + count, dtype=_U64)
        indices[position - first : position - first + count] = permute(
            places, key=mix(mix(seed) ^ epoch), size=num_samples
        )
        position += count
    return indices


def permute(places: NDArray[np.uint64], *, key: int, size: int) -> NDArray[np.int64]:
    """Return where a permutation of range(size), chosen by `key`, sends each of `places`."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(places, key, half_bits)
    outside = values >= size
    while outside.any():
        values[outside] = _feistel(values[outside], key, half_bits)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], key: int, half_bits: int) -> NDArray[np.uint64]:
    shift, mask = _U64(half_bits), _U64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for turn in range(_ROUNDS):
        round_key = _U64(mix(key + turn + 1))
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finalizer of SplitMix64 (Steele, Lea and Flood, 2014); unsigned arithmetic wraps."""
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))
