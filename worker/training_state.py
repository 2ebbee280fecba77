"""What a checkpoint holds of a run: weights and optimizer state by name, and a few numbers.

Names carry the global layer index (`model/layers.7.…`, `optimizer/layers.7.…/exp_avg`), so they do
not know how the model was split. Replicas hold the same bits: the first one owns what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainmaster.errors import IntegrityError, UserError
from trainmaster.manifest import Manifest
from worker.checkpoint.tensors import DTYPE_NAMES
from worker.optimizer import Optimizer

_MODEL, _OPTIMIZER = "model/", "optimizer/"
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: the last step done, and how many updates were applied until then."""

    step: int
    applied_updates: int


def trainable(layers: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, tied ones once."""
    return {
        name: parameter for name, parameter in layers.named_parameters() if parameter.requires_grad
    }


def tensors_of(layers: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return all that must survive of this rank, as the live tensors themselves."""
    weights = {_MODEL + name: parameter.detach() for name, parameter in layers.named_parameters()}
    state = {_OPTIMIZER + name: tensor for name, tensor in optimizer.tensors().items()}
    return weights | state


def optimizer_tensors(manifest: Manifest, layers: nn.Module) -> dict[str, torch.Tensor]:
    """Return empty tensors for the optimizer state that a checkpoint holds of these layers, by
    `NAME/KEY`.

    Raises:
        UserError: a dtype that this version does not read.
    """
    own = dict(layers.named_parameters())
    found = {}
    for full_name, shards in manifest.tensors.items():
        name = full_name.removeprefix(_OPTIMIZER)
        if name == full_name or name.rpartition("/")[0] not in own:
            continue
        if shards[0].dtype not in DTYPES:
            raise UserError(
                f"{full_name} is stored as {shards[0].dtype}, which torch does not have"
            )
        ends = zip(
            *([o + n for o, n in zip(s.global_offset, s.shape, strict=True)] for s in shards),
            strict=True,
        )
        found[name] = torch.empty([max(axis) for axis in ends], dtype=DTYPES[shards[0].dtype])
    return found


def named_for_loading(
    layers: nn.Module, optimizer_state: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint is to be copied into, under its names."""
    weights = {_MODEL + name: parameter.detach() for name, parameter in layers.named_parameters()}
    return weights | {_OPTIMIZER + name: tensor for name, tensor in optimizer_state.items()}


def position_of(state: dict[str, Any], *, expected_step: int) -> Position:
    """Read the position from a checkpoint's state.

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
    return Position(step, applied)
