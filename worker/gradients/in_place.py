"""Sums of micro-batches' gradients in float32, as the parameters are: autograd adds them up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from worker.gradients.sums import Sums
from worker.model.parameters import Held


class InPlaceSums(Sums):
    """As `Sums`, but the parameters' gradients lie end to end in the buffer while backwards run, so
    that nothing is added up a second time and nothing more is kept. Rounded at each addition: the
    order of micro-batches and replicas shows in the last bits.
    """

    def __init__(self, parameters: Sequence[Held]) -> None:
        super().__init__(parameters, torch.float32)
        self.alone = frozenset()

    @staticmethod
    def fits(parameters: Sequence[Held]) -> bool:
        """Return whether autograd's gradients of these parameters can be what is added up."""
        return all(
            one.local.dtype is torch.float32 and not isinstance(one.parameter, DTensor)
            for one in parameters
        )

    def open(self) -> None:
        if self._flat is None:
            self._use(self._new())
        assert self._flat is not None
        self._flat.zero_()
        for one, view in zip(self._parameters, self._views, strict=True):
            one.parameter.grad = view.tensor

    def take(self, index: int) -> None:
        """Nothing is left to be done."""

    def take_all(self) -> None:
        """Nothing is left to be done."""

    def total(self) -> torch.Tensor:
        assert self._flat is not None, "it was opened"
        for one in self._parameters:
            one.parameter.grad = None
        return self._flat
