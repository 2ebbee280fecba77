"""A workload with dropout that writes down which samples each process reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAMPLES = 40


class Logged:
    """Inputs are read by the first stage, and by whoever has the whole model."""

    def __init__(self, folder: str, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(samples, 16, generator=generator)
        self._folder = Path(folder)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index >= len(self):
            raise IndexError(index)
        with (self._folder / f"{os.getpid()}.reads").open("a") as file:
            file.write(f"{index}\n")
        x = self._inputs[index]
        return x, (x.sum() > 0).long()


class Workload:
    def __init__(self, folder: str, samples: int = SAMPLES) -> None:
        self.folder = folder
        self.samples = samples

    def layers(self) -> list[Any]:
        return [
            lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1)),
            lambda: nn.Linear(32, 2),
        ]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        return nn.functional.cross_entropy(output, target, reduction="sum"), target.numel()

    def dataset(self) -> Logged:
        return Logged(self.folder, self.samples)


def workload(*, params: dict[str, Any], data: str) -> Workload:
    return Workload(**params)
