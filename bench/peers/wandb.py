"""wandb offline: a process beside writes a log that is to be uploaded later; it cannot be read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("wandb",)


class Wandb:
    """One `log` a step."""

    def __init__(self, folder: Path) -> None:
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
        import wandb

        self._wandb = wandb
        settings = wandb.Settings(x_disable_stats=True, console="off")
        self._run = wandb.init(project="bench", dir=str(folder), mode="offline", settings=settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def log_series(self, metric: str, values: list[float]) -> None:
        for step, value in enumerate(values, start=1):
            self._run.log({metric: value}, step=step)

    def finish(self) -> None:
        self._run.finish()

    def read(self, metric: str) -> int | None:
        return None

    def close(self) -> None: ...


make = Wandb
