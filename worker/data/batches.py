"""A replica's share of a batch, as stacked tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from trainmaster.errors import SpecError
from trainmaster.plugins import Dataset
from trainmaster.resolution import short_dataset
from worker.data.order import sample_indices
from worker.devices import ComputeDevice
from worker.model.user_code import named, problem, told


@dataclass(frozen=True, slots=True)
class Share:
    """Samples of one replica's share of a batch, sample axis first; None what its rank does not
    need.
    """

    inputs: torch.Tensor | None
    targets: torch.Tensor | None


class BatchReader:
    """Reads one replica's share of any batch. A rank between first and last stage has no dataset
    and reads nothing.

    Args:
        positions: the half-open range of positions within a batch that are the replica's.
        size: samples of a share; where there are more than positions, its last sample is repeated
            so often, and counts for nothing (`worker.pipeline.passes`).
    """

    def __init__(
        self,
        dataset: Dataset | None,
        *,
        seed: int,
        batch_size: int,
        positions: tuple[int, int],
        size: int,
        wants_inputs: bool,
        wants_targets: bool,
        device: ComputeDevice,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._batch_size = batch_size
        self._positions = positions
        self._padding = size - (positions[1] - positions[0])
        self._wants_inputs = wants_inputs
        self._wants_targets = wants_targets
        self._device = device
        if dataset is not None:
            too_short = short_dataset(len(dataset), batch_size)
            if too_short is not None:
                raise SpecError([too_short])

    @property
    def sha256(self) -> str | None:
        """What the dataset says its content is; None when it says nothing, or is not here."""
        found = getattr(self._dataset, "sha256", None)
        return found if isinstance(found, str) else None

    def probe_sha256(self) -> str | None:
        """Return a digest of how many samples there are and of the first and the last; None where
        none are read. It tells datasets apart that say nothing of their content.
        """
        if self._dataset is None:
            return None
        num_samples = len(self._dataset)
        digest = hashlib.sha256(f"{num_samples}".encode())
        for index in sorted({0, num_samples - 1}):
            sample: Any = self._dataset[index]
            refuse_sample(sample, index, like=sample)
            for part in sample:
                digest.update(told(part.shape, part.dtype).encode())
                digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def read(self, batch: int) -> Share:
        """Return this replica's share of `batch`."""
        if self._dataset is None:
            return Share(None, None)
        first, end = self._positions
        indices = sample_indices(
            seed=self._seed,
            batch=batch,
            batch_size=self._batch_size,
            num_samples=len(self._dataset),
        )[first:end]
        samples = [self._dataset[int(index)] for index in indices]
        samples += [samples[-1]] * self._padding
        return Share(
            self._stacked([inputs for inputs, _ in samples]) if self._wants_inputs else None,
            self._stacked([target for _, target in samples]) if self._wants_targets else None,
        )

    def _stacked(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return self._device.put(torch.stack(tensors))


def refuse_sample(sample: Any, index: int, *, like: Any) -> None:
    """Refuse what is no sample, or cannot stand in one batch with another.

    Raises:
        SpecError: names what was expected and seen.
    """
    is_pair = isinstance(sample, tuple) and len(sample) == 2
    if not (is_pair and all(isinstance(part, torch.Tensor) for part in sample)):
        seen = f"({', '.join(map(named, sample))})" if is_pair else named(sample)
        raise problem(
            f"dataset()[{index}] gives {seen}; a sample must be a tuple of two tensors "
            "(input, target)"
        )
    for name, part, first in zip(("input", "target"), sample, like, strict=True):
        seen, expected = told(part.shape, part.dtype), told(first.shape, first.dtype)
        if seen != expected:
            raise problem(
                f"dataset()[{index}] has the {name} {seen}, but dataset()[0] has {expected}: all "
                "samples must have one shape and dtype, or they cannot stand in one batch"
            )
