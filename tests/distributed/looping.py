"""A workload that loops for ever in user code: on one rank, from one forward on."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

RANK, FORWARD = 1, 9


def loop_for_ever() -> None:
    while True:
        time.sleep(0.01)


class Looping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 2)
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += self.training
        if self.runs >= FORWARD and dist.get_rank() == RANK:
            loop_for_ever()
        return self.inner(x)


class Workload:
    def layers(self) -> list[Any]:
        return [lambda: nn.Linear(8, 8), Looping]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        return nn.functional.cross_entropy(output, target, reduction="sum"), target.numel()

    def dataset(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(64, 8, generator=generator)
        return [(x, (x.sum() > 0).long()) for x in inputs]


def workload(*, params: dict[str, Any], data: str) -> Workload:
    return Workload()
