"""A workload one of whose layers does something wrong in its third forward."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch import nn


def raises() -> None:
    raise ValueError("a value of theirs")


def exits() -> None:
    sys.exit(0)


def exits_at_once() -> None:
    os._exit(3)


def asks_for_too_much() -> None:
    torch.empty(1 << 60)


def crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class Faulty(nn.Module):
    def __init__(self, fault: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.fault = fault
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += self.training
        if self.runs == 3:
            self.fault()
        return self.inner(x)


class Workload:
    """`fault` is one of the functions above; `weight` what the loss gives as its weight."""

    def __init__(self, fault: str = "", weight: float | str = 2.0) -> None:
        self.fault = globals()[fault] if fault else None
        self.weight = float(weight)

    def layers(self) -> list[Any]:
        second = (lambda: Faulty(self.fault)) if self.fault else (lambda: nn.Linear(8, 8))
        return [lambda: nn.Linear(8, 8), second, lambda: nn.Linear(8, 2)]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
        return nn.functional.cross_entropy(output, target, reduction="sum"), self.weight

    def dataset(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.full((8,), float(n)), torch.tensor(n % 2)) for n in range(20)]


def workload(*, params: dict[str, Any], data: str) -> Workload:
    return Workload(**params)
