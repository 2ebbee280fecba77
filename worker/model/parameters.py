"""Parameters as this rank holds them, and the pieces of them that its optimizer updates.

A rank holds a parameter whole, or, where its place is shared by several ranks (`tensor`), a box of
it. With ZeRO the replicas share the work of updating what they hold alike: each updates some rows
of it, and then they exchange them. So an optimizer sees plain tensors that share memory with the
parameters, and what it keeps of them can be saved as boxes of whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter on this rank.

    Attributes:
        local: what this rank holds of it, sharing its memory.
        offset: where `local` begins in the whole, per axis.
        shape: of the whole.
        counts: whether this rank speaks for what it holds; False where another rank of its place
            holds the same.
        is_only_here: whether no other replica holds the same.
    """

    name: str
    parameter: nn.Parameter
    local: torch.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    counts: bool
    is_only_here: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What this rank's optimizer updates of a parameter: some of its rows.

    Attributes:
        target: those rows of the parameter itself.
        updated: what the optimizer is given: a plain tensor on `target`'s memory, or a copy of it
            in host memory.
        offset: where the piece begins in the whole, per axis.
        shape: of the whole.
        is_saved: whether this rank saves what the optimizer keeps of it; False where another rank
            keeps the same.
        is_first: whether it begins where the whole does, so that it speaks for what is kept once.
    """

    name: str
    target: torch.Tensor
    updated: nn.Parameter
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    is_saved: bool
    is_first: bool


def held(
    layers: nn.Module, *, tensor: int, is_divided: bool, trained_only: bool = True
) -> list[Held]:
    """Return the parameters, tied ones once.

    Args:
        tensor: which part of its place's tensors this rank holds.
        is_divided: whether the replicas hold different rows of them.
    """
    return [
        _held(name, parameter, tensor, is_divided)
        for name, parameter in layers.named_parameters()
        if parameter.requires_grad or not trained_only
    ]


def _held(name: str, parameter: nn.Parameter, tensor: int, is_divided: bool) -> Held:
    whole = tuple(parameter.shape)
    data = parameter.detach()
    if not isinstance(data, DTensor):
        return Held(name, parameter, data, (0,) * len(whole), whole, counts=tensor == 0)
    _, offset = compute_local_shape_and_global_offset(whole, data.device_mesh, data.placements)
    is_split = any(placement.is_shard() for placement in data.placements)
    local = data.to_local()
    return Held(
        name,
        parameter,
        local,
        tuple(offset),
        whole,
        counts=is_split or tensor == 0,
        is_only_here=is_divided and is_split,
    )


def rows_of(num_rows: int, parts: int, index: int) -> tuple[int, int]:
    """Return the half-open range of rows that part `index` of `parts` has: as even as they go."""
    return num_rows * index // parts, num_rows * (index + 1) // parts


def part_of(local: torch.Tensor, parts: int, index: int) -> torch.Tensor:
    """Return the rows of `local` that part `index` has, as a view. What has no axes is the first
    part's.
    """
    if local.dim() == 0:
        return local if index == 0 else local.reshape(1)[:0]
    first, end = rows_of(local.shape[0], parts, index)
    return local[first:end]


def piece_of(one: Held, *, parts: int, index: int, replica: int, on_host: bool) -> Piece | None:
    """Return what part `index` of `parts` updates of a parameter, or None where nothing is left for
    it.

    Args:
        on_host: keep a copy in host memory, and let the optimizer work there.
    """
    target = part_of(one.local, parts, index)
    if target.numel() == 0 and one.local.numel() > 0:
        return None
    offset = list(one.offset)
    if one.local.dim() > 0:
        offset[0] += rows_of(one.local.shape[0], parts, index)[0]
    if parts == 1 and not on_host and not isinstance(one.parameter, DTensor):
        updated = one.parameter
    else:
        data = target.detach().to("cpu", copy=True) if on_host else target.detach()
        updated = nn.Parameter(data)
    return Piece(
        one.name,
        target,
        updated,
        tuple(offset),
        one.shape,
        is_saved=one.counts and (parts > 1 or replica == 0 or one.is_only_here),
        is_first=not any(offset),
    )


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of some tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
