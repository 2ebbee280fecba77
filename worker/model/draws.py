"""What layers draw (dropout): a function of seed, pass, micro-batch and layer alone, so that it is
the same after a restart, and in every layout that cuts batches into micro-batches of that size.
"""

from __future__ import annotations

import torch

from worker.model.mixing import mix

_SALT = 0x6472617773  # so that draws have nothing to do with the order of samples


class Draws:
    """Seeds torch's generator of random numbers before each layer of each micro-batch.

    Args:
        seed: of the spec.
        first_micro_batch: the number, within a pass over a global batch and from 0, of the first
            micro-batch of this rank's replica.
    """

    def __init__(self, seed: int, first_micro_batch: int) -> None:
        self._seed = mix(seed ^ _SALT)
        self._first = first_micro_batch
        self._pass = self._of_micro_batch = 0

    def begin(self, number: int) -> None:
        """Go on to a pass, by its number."""
        self._pass = mix(self._seed ^ number)

    def choose(self, micro_batch: int) -> None:
        """Go on to a micro-batch, by its number within the replica's share."""
        self._of_micro_batch = mix(self._pass ^ (self._first + micro_batch))

    def seed(self, layer: int) -> None:
        """Seed what `layer` draws."""
        seed = mix(self._of_micro_batch ^ layer)
        # torch.manual_seed asks after all kinds of devices and takes a hundred times as long.
        torch.default_generator.manual_seed(seed >> 1)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed >> 1)
