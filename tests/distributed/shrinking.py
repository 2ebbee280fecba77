"""A workload whose second layer gives another shape from its third run on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Shrinking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return self.inner(x)[:, : 8 if self.runs < 3 else 7]


class Workload:
    def layers(self) -> list[Any]:
        return [lambda: nn.Linear(8, 8), Shrinking, lambda: nn.Linear(8, 2)]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        return nn.functional.cross_entropy(output, target, reduction="sum"), len(target)

    def dataset(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(8), torch.tensor(n % 2)) for n in range(20)]


def workload(*, params: dict[str, Any], data: str) -> Workload:
    return Workload()
