"""A workload whose samples are padded: what is padding has no target and no weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

IGNORED = -100


class Padded:
    """Sequences of 1 to 6 places out of 6; every fifth sample is padding throughout."""

    tensor_units = 1

    def layers(self) -> list[Callable[[], nn.Module]]:
        return [
            lambda: nn.Embedding(16, 24),
            lambda: nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.Tanh()),
            lambda: nn.Sequential(nn.Linear(24, 24), nn.Tanh()),
            lambda: nn.Linear(24, 16),
        ]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = nn.functional.cross_entropy(
            output.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total, (target != IGNORED).sum()

    def dataset(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        found = []
        for sample in range(41):
            tokens = torch.randint(0, 16, (6,), generator=generator)
            target = tokens.roll(-1)
            target[0 if sample % 5 == 0 else sample % 6 + 1 :] = IGNORED
            found.append((tokens, target))
        return found


def workload(*, params: dict[str, Any], data: str) -> Padded:
    return Padded()
