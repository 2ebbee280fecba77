"""What a checkpoint holds of a run: weights and optimizer state by name, and a few numbers.

Names carry the global layer index (`model/layers.7.…`, `optimizer/layers.7.…/exp_avg`), so they do
not know how the model was split; what several ranks hold parts of is saved as boxes of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainmaster.checkpoint.manifest import STATE_NAME, Manifest
from trainmaster.checkpoint.tiling import Box, whole_shape
from trainmaster.errors import IntegrityError, UserError
from trainmaster.layout import RankRole
from worker.checkpoint.tensors import DTYPE_NAMES, Shard
from worker.model.parameters import Held, Piece, held
from worker.model.precision import LossScale, Precision
from worker.optimizer import Optimizer

_MODEL, _OPTIMIZER = "model/", "optimizer/"
Saved = torch.Tensor | Shard
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: the last step done, how many updates were applied until then, and the
    scale of the next step's losses.
    """

    step: int
    applied_updates: int
    loss_scale: LossScale


def tensors_of(
    layers: nn.Module, pieces: Sequence[Piece], optimizer: Optimizer, role: RankRole
) -> dict[str, Saved]:
    """Return all that this rank saves, as the live tensors themselves or boxes of them.

    Where replicas hold the same weights, the first one saves them. Of what the optimizer keeps,
    each rank saves what its pieces are of; what is kept once for a whole parameter, the first piece
    saves.
    """
    saved: dict[str, Saved] = {}
    for one in _held(layers, role):
        if one.counts and (role.replica == 0 or one.is_only_here):
            saved[_MODEL + one.name] = _as_saved(one)
    by_name = {piece.name: piece for piece in pieces}
    for full_name, tensor in optimizer.tensors().items():
        piece = by_name[full_name.rpartition("/")[0]]
        if not piece.is_saved:
            continue
        if is_boxed(piece, tuple(tensor.shape)):
            saved[_OPTIMIZER + full_name] = Shard(tensor, piece.offset, piece.shape)
        elif piece.is_first:
            saved[_OPTIMIZER + full_name] = tensor
    return saved


def is_boxed(piece: Piece, shape: tuple[int, ...]) -> bool:
    """Return whether state of `shape` belongs to the piece element by element.

    State of a whole parameter may have any shape; that of a part must be one of these two, or it
    could not be told what it is a part of.
    """
    boxed = bool(shape) and shape == tuple(piece.updated.shape)
    whole = tuple(piece.updated.shape) == piece.shape
    assert boxed or whole or not shape, f"state of {list(shape)} of a part of {piece.name}"
    return boxed


def optimizer_tensors(manifest: Manifest, pieces: Sequence[Piece]) -> dict[str, Saved]:
    """Return empty tensors, or boxes of them, for the optimizer state that a checkpoint holds of
    these pieces, by `NAME/KEY`.

    Raises:
        UserError: a dtype that this version does not read.
    """
    own = {piece.name: piece for piece in pieces}
    found: dict[str, Saved] = {}
    for full_name, shards in manifest.tensors.items():
        name = full_name.removeprefix(_OPTIMIZER)
        piece = own.get(name.rpartition("/")[0])
        if name == full_name or piece is None:
            continue
        if shards[0].dtype not in DTYPES:
            raise UserError(
                f"{full_name} is stored as {shards[0].dtype}, which torch does not have"
            )
        dtype = DTYPES[shards[0].dtype]
        boxes = [Box(tuple(each.global_offset), tuple(each.shape)) for each in shards]
        shape = whole_shape(boxes) if boxes[0].shape else ()
        if shape and shape == piece.shape:
            part = torch.empty(piece.updated.shape, dtype=dtype)
            found[name] = Shard(part, piece.offset, piece.shape)
        else:
            found[name] = torch.empty(shape, dtype=dtype)
    return found


def named_for_loading(
    layers: nn.Module, optimizer_state: dict[str, Saved], role: RankRole
) -> dict[str, Saved]:
    """Return the tensors that a checkpoint is to be copied into, under its names."""
    weights = {_MODEL + one.name: _as_saved(one) for one in _held(layers, role)}
    return weights | {_OPTIMIZER + name: tensor for name, tensor in optimizer_state.items()}


def refuse_counters_ahead(optimizer_state: dict[str, Saved], *, applied_updates: int) -> None:
    """Refuse an optimizer that has counted more updates than were applied: its state is then of a
    later step than the weights beside it.

    Raises:
        IntegrityError: names the counter, and both counts.
    """
    for name, saved in optimizer_state.items():
        if isinstance(saved, torch.Tensor) and name.endswith("/step") and saved.numel() == 1:
            counted = float(saved)
            if counted > applied_updates:
                raise IntegrityError(
                    f"{_OPTIMIZER}{name}: counts {counted:g} updates where {applied_updates} were"
                    " applied: it is of a later step than the weights",
                    file=STATE_NAME,
                    expected=str(applied_updates),
                    seen=f"{counted:g}",
                )


def whole_weights(layers: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trainable parameters by name, tied ones once, those whole of which this rank holds
    a part. Collective over the ranks that hold the others.
    """
    return {
        name: parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
        for name, parameter in layers.named_parameters()
        if parameter.requires_grad
    }


def _held(layers: nn.Module, role: RankRole) -> list[Held]:
    """Return all parameters, those that are not trained too."""
    return held(layers, tensor=role.tensor, is_divided=role.is_divided, trained_only=False)


def _as_saved(one: Held) -> Saved:
    return Shard(one.local, one.offset, one.shape)


def position_of(state: dict[str, Any], *, expected_step: int, precision: Precision) -> Position:
    """Read the position from a checkpoint's state. A scale that it does not hold, or that another
    precision used, is found anew.

    Raises:
        IntegrityError: it is not the state of the step that was asked for.
    """
    step, applied = state.get("step"), state.get("applied_updates")
    if step != expected_step or not isinstance(applied, int):
        raise IntegrityError(
            f"state.json: holds step {step}, but step {expected_step} was asked for",
            file="state.json",
            expected=str(expected_step),
            seen=str(step),
        )
    scale = LossScale.initial(precision)
    match state.get("loss_scale"):
        case [float(factor), int(updates)] if precision == "fp16" and factor > 1.0:
            scale = LossScale(factor, updates)
    return Position(step, applied, scale)
