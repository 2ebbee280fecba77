"""Activations that are computed again in a layer's backward instead of being kept (Chen et al.,
2016; Korthikanti et al., 2023), with torch's checkpointing.

- none: what the backward needs is kept.
- selective: of each layer, its input and what its matrix products, convolutions and attention gave
  are kept: they are most of the work and the lesser part of the memory. Norms, activation functions
  and dropout are computed again.
- full: of each layer its input alone is kept, and the layer is computed again.

What is computed again has the same bits: the same functions of the same inputs, and the generator
of random numbers is put back for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import (
    GraphExecGroup,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from trainmaster.cells import Recompute

_aten: Final = torch.ops.aten
KEPT: Final = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]
"""Operations whose results `selective` keeps; their composites come down to these."""

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Contexts of the forward, and of what is computed again."""
Run = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def running(recompute: Recompute) -> Run:
    """Return how a layer is run forward, so that its backward finds or computes what it needs."""
    if recompute == "none":
        return plainly
    if recompute == "full":
        return _checkpointed
    return partial(_checkpointed, kept=partial(create_selective_checkpoint_contexts, KEPT))


def plainly(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Run a layer forward and keep all that its backward needs."""
    output: torch.Tensor = layer(x)
    return output


def _checkpointed(
    layer: nn.Module, x: torch.Tensor, kept: Contexts = noop_context_fn
) -> torch.Tensor:
    output: torch.Tensor = checkpoint(layer, x, use_reentrant=False, context_fn=kept)
    return output


def computed_once() -> AbstractContextManager[object]:
    """Return a context in which a layer is computed again at most once, however many backwards are
    run for it: one for each weight, where a schedule computes those apart.
    """
    return GraphExecGroup()
