"""TensorBoard's event files, by tensorboardX (which needs neither torch nor tensorflow)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("tensorboardX", "tensorboard")


class TensorBoard:
    """One `add_scalar` per metric: no call for all at once makes one series per metric."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._folder = folder
        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_series(self, metric: str, values: list[float]) -> None:
        for step, value in enumerate(values, start=1):
            self._writer.add_scalar(metric, value, step)

    def finish(self) -> None:
        self._writer.close()

    def read(self, metric: str) -> int | None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(self._folder), size_guidance={"scalars": 0})
        found.Reload()
        return len(found.Scalars(metric))

    def close(self) -> None: ...


make = TensorBoard
