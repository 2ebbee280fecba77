"""A replica's share of a batch, as stacked tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainmaster.errors import Problem, SpecError
from trainmaster.plugins import Dataset
from worker.data.order import sample_indices


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
    """

    def __init__(
        self,
        dataset: Dataset | None,
        *,
        seed: int,
        batch_size: int,
        positions: tuple[int, int],
        wants_inputs: bool,
        wants_targets: bool,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._batch_size = batch_size
        self._positions = positions
        self._wants_inputs = wants_inputs
        self._wants_targets = wants_targets
        if dataset is not None and len(dataset) == 0:
            raise SpecError([Problem("data.source", "the workload's dataset holds no samples")])

    @property
    def sha256(self) -> str | None:
        """What the dataset says its content is; None when it says nothing, or is not here."""
        found = getattr(self._dataset, "sha256", None)
        return found if isinstance(found, str) else None

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
        return Share(
            torch.stack([inputs for inputs, _ in samples]) if self._wants_inputs else None,
            torch.stack([target for _, target in samples]) if self._wants_targets else None,
        )
