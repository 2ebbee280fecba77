"""Sums of micro-batches' gradients, in float64 (ADR 13) unless another dtype is asked for, filled
parameter by parameter as a backward gets to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from worker.model.parameters import Held

FEW: Final = 4096
"""Elements below which the call of an addition takes longer than the addition."""


class Sums:
    """One sum for each of some parameters of one dtype, end to end in one buffer. Those with fewer
    than `FEW` elements lie at its end and are added to all at once.

    Gradients are to be taken inside of `adding`.

    Attributes:
        alone: the parameters, by index, whose gradients are best taken as they come; what is left
            of the others until the end of a backward is little.
    """

    def __init__(self, parameters: Sequence[Held], dtype: torch.dtype = torch.float64) -> None:
        self._parameters = parameters
        sizes = [one.local.numel() for one in parameters]
        self.num_elements = sum(sizes)
        self._few = [index for index, size in enumerate(sizes) if size < FEW]
        few = [parameters[index].parameter for index in self._few]
        self._joins = len(few) > 1 and not any(isinstance(one, DTensor) for one in few)
        """Whether those of a micro-batch can be added as one."""
        self._joined = [(parameter, parameter.dim() == 1) for parameter in few]
        """Each, and whether its gradient is flat already."""
        self.alone = frozenset(range(len(sizes))) - frozenset(self._few)
        order = [*sorted(self.alone), *self._few]
        self._sizes = [sizes[index] for index in order]
        self._place = sorted(range(len(order)), key=order.__getitem__)
        self._device = parameters[0].local.device
        self.dtype = dtype
        self._flat: torch.Tensor | None = None
        self._views: list[_View] = []
        self._view_of_few: _View | None = None
        self._untouched: set[int] = set()

    def open(self) -> None:
        """Begin a step."""
        self._untouched = set(range(len(self._parameters)))

    def take(self, index: int) -> None:
        """Add the gradient that a backward has left in a parameter, if any, and give it back: so
        no more than one large one is kept beside the sums.
        """
        gradient = self._given(index)
        if gradient is None:
            return
        if self._flat is None:
            self._use(self._new())
        if index in self._untouched:
            self._untouched.discard(index)
            self._views[index].tensor.copy_(gradient)
        else:
            self._views[index].add(gradient)

    def take_all(self) -> None:
        """Add what a backward has left in any of the parameters."""
        for index in self.alone:
            self.take(index)
        joined = self._joined_few()
        if joined is None:
            for index in self._few:
                self.take(index)
            return
        if self._flat is None:
            self._use(self._new())
        assert self._view_of_few is not None, "it is there with the buffer"
        if self._few[0] in self._untouched:
            self._untouched.difference_update(self._few)
            self._view_of_few.tensor.copy_(joined)
        else:
            self._view_of_few.add(joined)

    def _joined_few(self) -> torch.Tensor | None:
        """Return all small gradients as one and give them back; None where they are to be taken one
        by one: some are missing, or have been in this step, or are sparse.
        """
        if not self._joins or 0 < len(self._untouched.intersection(self._few)) < len(self._few):
            return None
        # Whatever is done here for each of them takes longer than adding its values.
        parts = []
        for parameter, is_flat in self._joined:
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                return None
            parts.append(gradient if is_flat else gradient.reshape(-1))
        joined = torch.cat(parts)
        for parameter, _ in self._joined:
            parameter.grad = None
        return joined

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
            self._views[index].tensor.zero_()
        self._untouched = set()
        return self._flat

    def release(self) -> None:
        """Give the memory back until it is needed again."""
        self._flat = self._view_of_few = None
        self._views = []

    def cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return a flat buffer's part for each parameter, still flat."""
        parts = flat.split(self._sizes)
        return [parts[place] for place in self._place]

    def _given(self, index: int) -> torch.Tensor | None:
        parameter = self._parameters[index].parameter
        if parameter.grad is None:
            return None
        gradient, parameter.grad = _local(parameter), None
        return gradient

    def _new(self) -> torch.Tensor:
        return torch.empty(self.num_elements, dtype=self.dtype, device=self._device)

    def _use(self, flat: torch.Tensor) -> None:
        self._flat = flat
        parts = zip(self._parameters, self.cut(flat), strict=True)
        self._views = [_View(part.view(one.local.shape)) for one, part in parts]
        self._view_of_few = _View(flat[sum(self._sizes[: len(self.alone)]) :])


class _View:
    """A part of the sums. NumPy adds values of a smaller dtype in a third of torch's time, with the
    same bits, where it has them.
    """

    __slots__ = ("_array", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._array = tensor.numpy() if tensor.device.type == "cpu" else None

    def add(self, values: torch.Tensor) -> None:
        if self._array is None or values.dtype is torch.bfloat16:
            self.tensor.add_(values)
        else:
            np.add(self._array, values.numpy(), out=self._array)


def adding() -> AbstractContextManager[object]:
    """Return a context to add in: what is not finite is counted later, and not warned of. One for
    many additions, since it costs as much as a small one of them.
    """
    return np.errstate(all="ignore")


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


def rounded_in_place(
    sums: torch.Tensor, factor: float | torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return `sums` times `factor`, rounded once to `dtype`, in the memory of `sums` itself, which
    hold nothing more of use then.

    Runs that double in length are read from behind where they are written.
    """
    if sums.dtype is dtype:
        return sums.mul_(factor)
    out = sums.view(dtype)[: sums.numel()]
    if sums.numel() == 0:
        return out
    out[0] = sums[0] * factor
    if isinstance(factor, torch.Tensor) or dtype is torch.bfloat16 or sums.device.type != "cpu":
        for first, end in _doubling(sums.numel()):
            torch.mul(sums[first:end], factor, out=out[first:end])
        return out
    read, written = sums.numpy(), out.numpy()
    with adding():
        for first, end in _doubling(sums.numel()):
            np.multiply(read[first:end], factor, out=written[first:end], casting="same_kind")
    return out


def _doubling(size: int) -> Iterator[tuple[int, int]]:
    first = 1
    while first < size:
        yield first, min(2 * first, size)
        first *= 2
