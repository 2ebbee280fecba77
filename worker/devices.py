"""The device that a rank computes on, and what follows from its kind.

A kind (of devices) is what one native backend joins: `cpu` (Gloo), `cuda` (NCCL). Emulated kinds
compute on the CPU and pretend to be strangers to each other. Where ranks of a group are of
different kinds, what they exchange goes through host memory on Gloo (`worker.carrier`,
`worker.pipeline.staging`), and sums travel as `WIRE_DTYPE`.

Nothing here touches CUDA before `ComputeDevice.enter`: ranks are forked from a process that must
not have, and a machine without CUDA pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from trainmaster.errors import UserError
from trainmaster.spec import GradientSums
from worker.launch import SlotDevice

CUDA: Final = "cuda"
HOST: Final = torch.device("cpu")
WIRE_DTYPE: Final = torch.float64
"""In which sums of gradients travel between devices of different kinds: all replicas round alike,
and nothing that either kind holds is lost.
"""
GLOO: Final = "gloo"
NCCL: Final = "cpu:gloo,cuda:nccl"
"""NCCL for what lies on CUDA devices; control messages lie in host memory and go over Gloo."""


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """One rank's device.

    Attributes:
        kind: as its node told it.
        index: which CUDA device of its node; 0 for any other kind.
        runs_ahead: whether the host only launches work on it, so that reading from it is waiting.
    """

    kind: str
    index: int = 0
    runs_ahead: bool = False

    @classmethod
    def of(cls, told: SlotDevice) -> ComputeDevice:
        """Return the device of a rank's slot."""
        return cls(told.kind, told.index, told.runs_ahead)

    @property
    def is_cuda(self) -> bool:
        """Whether it is a real CUDA device; an emulated kind never is."""
        return self.kind == CUDA

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors lie."""
        return torch.device(CUDA, self.index) if self.is_cuda else HOST

    def enter(self) -> None:
        """Make it this process's device, before anything else uses CUDA.

        Raises:
            UserError: torch does not have it.
        """
        if not self.is_cuda:
            return
        if not torch.cuda.is_available() or self.index >= torch.cuda.device_count():
            raise UserError(
                f"the agent gave this rank CUDA device {self.index}, but torch {torch.__version__} "
                f"finds {torch.cuda.device_count()}: install a build of torch for CUDA, or start "
                "the agent with TRAINMASTER_DEVICES=cpu",
                code="no_device",
            )
        torch.cuda.set_device(self.index)

    def take(self, layers: nn.Module) -> None:
        """Move layers here, in place. They were built in host memory, so that every kind begins
        with the same bits.
        """
        if self.is_cuda:
            layers.to(self.torch_device)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host here; the host does not wait for the copy."""
        if not self.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.torch_device, non_blocking=True)

    def memory_bytes(self) -> tuple[int, int, int]:
        """Return what this rank holds, what is in use and what there is, of a CUDA device's
        memory.
        """
        free, total = torch.cuda.mem_get_info(self.index)
        return torch.cuda.memory_reserved(self.index), total - free, total


class Relay:
    """Host memory on the way between devices of different kinds.

    Attributes:
        num_bytes: that have gone through it.
    """

    def __init__(self, device: ComputeDevice) -> None:
        self._pins = device.is_cuda
        self.num_bytes = 0

    def copy_of(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a tensor's copy in host memory. It is whole then: Gloo reads it at once."""
        copied = self.room_for(tensor, dtype)
        copied.copy_(tensor.detach())
        return copied

    def room_for(self, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return host memory for what a tensor is to hold, pinned where that makes copies
        faster.
        """
        room = torch.empty(
            like.shape, dtype=dtype or like.dtype, device=HOST, pin_memory=self._pins
        )
        self.num_bytes += room.numel() * room.element_size()
        return room


def sum_dtype(device: torch.device, asked: GradientSums) -> torch.dtype:
    """Return in which gradients are summed: on the host as asked (ADR 13). A CUDA device sums in
    float32: float64 would double what its sums take of memory and of the links, and on most models
    take many times as long.
    """
    in_64_bits = device.type == "cpu" and asked == "float64"
    return torch.float64 if in_64_bits else torch.float32


def backend_of(kinds: Iterable[str]) -> str:
    """Return the backend of a group of ranks on devices of these kinds."""
    return NCCL if set(kinds) == {CUDA} else GLOO


def cross(kinds: Iterable[str]) -> bool:
    """Return whether ranks on devices of these kinds need host memory between them."""
    return len(set(kinds)) > 1


def named(kinds: Sequence[str], ranks: Sequence[int]) -> str:
    """Return who is on what, for a person."""
    return ", ".join(f"rank {rank} on {kinds[rank]}" for rank in ranks)
