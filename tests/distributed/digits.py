"""A workload as an outsider might bring it: lambdas, dropout, scalar targets, its own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class Digits:
    def __init__(self, dropout: float, samples: int) -> None:
        self.dropout = dropout
        self.samples = samples

    def layers(self) -> list[Callable[[], nn.Module]]:
        return [
            lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(self.dropout)),
            lambda: nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(self.dropout)),
            lambda: nn.Linear(32, 2),
        ]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        return nn.functional.cross_entropy(output, target, reduction="sum"), target.numel()

    def dataset(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.samples, 16, generator=generator)
        return [(x, (x.sum() > 0).long()) for x in inputs]


class WithMomentum(Digits):
    def optimizer(self, params: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for _, parameter in params], lr=0.5, momentum=0.9)


def workload(*, params: dict[str, Any], data: str) -> Digits:
    kind = WithMomentum if params.get("momentum") else Digits
    return kind(params.get("dropout", 0.0), params.get("samples", 50))
