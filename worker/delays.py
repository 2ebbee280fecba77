"""Emulated links under what torch sends by itself: the layers that ZeRO 3 gathers and the gradients
that it scatters, and what the ranks of a place exchange (tensor parallelism).

Who calls these waits for them, so a rank sleeps for as long as its slowest link makes a ring take
once the exchange itself has ended. It does so within its compute, where torch makes the calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainmaster.emulation import Link
from worker.emulation import ring_s

_collectives: Final = torch.ops._c10d_functional
_LAPS: Final = {
    _collectives.all_reduce.default: 2,
    _collectives.all_gather_into_tensor.default: 1,
    _collectives.reduce_scatter_tensor.default: 1,
    _collectives.all_to_all_single.default: 1,
}
"""How often each takes its bytes round the ring."""


class Ring:
    """The ranks of a group, in a ring over a rank's emulated links.

    Args:
        ranks: of the group.
        links: to other ranks, by rank; those outside of the group do not matter.
    """

    def __init__(self, ranks: Sequence[int], links: Mapping[int, Link]) -> None:
        self._size = len(ranks)
        self._links = {rank: links[rank] for rank in ranks if rank in links}

    @property
    def is_slow(self) -> bool:
        """Whether anything in it is emulated."""
        return bool(self._links)

    def lap_s(self, tensor: torch.Tensor) -> float:
        """Return the seconds in which what a tensor holds has gone round once."""
        return ring_s(self._links, self._size, tensor.numel() * tensor.element_size()) / 2


def slow_down(module: FSDPModule, ring: Ring) -> None:
    """Have a layer whose parameters are divided over a ring gathered and scattered as slowly as its
    links are.
    """
    if ring.is_slow:
        module.set_custom_all_gather(_SlowGather(ring))
        module.set_custom_reduce_scatter(_SlowScatter(ring))


def slow_place(ring: Ring) -> AbstractContextManager[object]:
    """Return a context in which what the ranks of a place exchange takes its time."""
    return _SlowExchanges(ring) if ring.is_slow else nullcontext()


class _Temporary:
    """Memory for one exchange, as FSDP takes it when nobody says otherwise."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _SlowGather(_Temporary, AllGather):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        dist.all_gather_single(output_tensor, input_tensor, group=group)
        time.sleep(self._ring.lap_s(output_tensor))


class _SlowScatter(_Temporary, ReduceScatter):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)
        time.sleep(self._ring.lap_s(input_tensor))


class _SlowExchanges(TorchDispatchMode):
    """Sees every operation, and sleeps after those that have waited for an exchange."""

    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self._ring = ring
        self._owed_s = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(each, DTensor | AsyncCollectiveTensor) for each in types):
            return NotImplemented  # it comes back as the plain operations that it is made of
        result = func(*args, **(kwargs or {}))
        if func in _LAPS:
            largest = max(args[0], result, key=torch.numel)
            self._owed_s += _LAPS[func] * self._ring.lap_s(largest)
        elif func is _collectives.wait_tensor.default and self._owed_s:
            time.sleep(self._owed_s)
            self._owed_s = 0.0
        return result
