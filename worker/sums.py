"""Sums of micro-batches' gradients in float64 (ADR 13), filled parameter by parameter as a backward
gets to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from worker.devices import sum_dtype
from worker.parameters import Held

SUM_DTYPE: Final = torch.float64
"""On the host; see `worker.devices.sum_dtype` for the others."""


class Sums:
    """One sum for each of some parameters of one dtype, end to end in one buffer."""

    def __init__(self, parameters: Sequence[Held]) -> None:
        self._parameters = parameters
        self.num_elements = sum(one.local.numel() for one in parameters)
        self._device = parameters[0].local.device
        self.dtype = sum_dtype(self._device)
        self._flat: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        self._untouched: set[int] = set()

    def open(self) -> None:
        """Begin a step."""
        self._untouched = set(range(len(self._parameters)))

    def take(self, index: int) -> None:
        """Add the gradient that a backward has left in a parameter, if any, and give it back: so
        no more than one of them is kept beside the sums.
        """
        parameter = self._parameters[index].parameter
        if parameter.grad is None:
            return
        gradient, parameter.grad = _local(parameter), None
        if self._flat is None:
            self._use(self._new())
        view = self._views[index]
        if index in self._untouched:
            self._untouched.discard(index)
            view.copy_(gradient)
        else:
            add(view, gradient)

    def take_all(self) -> None:
        """Add what a backward has left in any of the parameters."""
        for index, one in enumerate(self._parameters):
            if one.parameter.grad is not None:
                self.take(index)

    def end(self, leaf: int) -> None:
        """Note that all gradients of a micro-batch have been taken; here, nothing follows from it.

        Args:
            leaf: the number of the micro-batch among all of the step.
        """

    def total(self) -> torch.Tensor:
        """Return the sums, flat."""
        if self._flat is None:
            self._use(self._new())
        assert self._flat is not None
        for index in self._untouched:
            self._views[index].zero_()
        self._untouched = set()
        return self._flat

    def release(self) -> None:
        """Give the memory back until it is needed again."""
        self._flat = None
        self._views = []

    def cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return a flat buffer's part for each parameter, still flat."""
        return list(flat.split([one.local.numel() for one in self._parameters]))

    def _new(self) -> torch.Tensor:
        return torch.empty(self.num_elements, dtype=self.dtype, device=self._device)

    def _use(self, flat: torch.Tensor) -> None:
        self._flat = flat
        parts = zip(self._parameters, self.cut(flat), strict=True)
        self._views = [part.view(one.local.shape) for one, part in parts]


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return what this rank holds of a parameter's gradient, divided as the parameter is."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor):
        assert isinstance(parameter, DTensor), "a gradient is divided as its parameter is"
        if gradient.placements != parameter.placements:
            gradient = gradient.redistribute(placements=parameter.placements)
        return gradient.to_local()
    return gradient.to_dense() if gradient.is_sparse else gradient


def add(sums: torch.Tensor, values: torch.Tensor) -> None:
    """Add values of a smaller dtype. NumPy mixes dtypes in a third of torch's time, with the same
    bits, where it has them.
    """
    if values.dtype is torch.bfloat16 or values.device.type != "cpu":
        sums.add_(values)
        return
    mine = sums.numpy()
    with np.errstate(all="ignore"):
        np.add(mine, values.numpy(), out=mine)


def rounded_in_place(
    sums: torch.Tensor, factor: float | torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return `sums` times `factor`, rounded once to `dtype`, in the memory of `sums` itself, which
    hold nothing more of use then.

    Runs that double in length are read from behind where they are written.
    """
    out = sums.view(dtype)[: sums.numel()]
    if sums.numel() == 0:
        return out
    out[0] = sums[0] * factor
    first = 1
    while first < sums.numel():
        end = min(2 * first, sums.numel())
        _scale(sums[first:end], factor, out[first:end])
        first = end
    return out


def _scale(sums: torch.Tensor, factor: float | torch.Tensor, out: torch.Tensor) -> None:
    if isinstance(factor, torch.Tensor) or out.dtype is torch.bfloat16 or out.device.type != "cpu":
        torch.mul(sums, factor, out=out)
        return
    with np.errstate(all="ignore"):
        np.multiply(sums.numpy(), factor, out=out.numpy(), casting="same_kind")
