"""Real curves and incidents that lie beside the project where it is developed: where to find them,
and how excerpts of logs become series.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.rules import packs, sheet
from control.rules.backtest import backtest, metrics_of

DATA = Path(__file__).parents[2] / "shared" / "data"
RULES = packs.load("default")
QUIET_STEPS = 200

HEALTHY = ("curves/*.csv", "measured/healthy*.csv", "measured/nodiverge*.csv")
SICK = ("measured/nan*.csv", "measured/spike*.csv")

Found = dict[str, Any]


def files(*patterns: str) -> list[Path]:
    """Return the files of these kinds, none where the data is not there."""
    return sorted(path for pattern in patterns for path in DATA.glob(pattern))


def tried(name: str, lines: Iterable[str]) -> Found:
    """Return what the default pack says of a CSV of one run."""
    [history] = sheet.read(name, lines, metrics_of(RULES))
    return backtest(RULES, history)


def tried_file(path: Path) -> Found:
    """Return what the default pack says of a file."""
    with path.open(encoding="utf-8", newline="") as lines:
        return tried(path.name, lines)


@dataclass(frozen=True)
class Episode:
    """Consecutive rows of one log, as printed: step, loss and gradient norm, "" where absent."""

    run: str
    section: str
    rows: tuple[tuple[int, str, str], ...]

    @property
    def name(self) -> str:
        return f"{self.run} {self.section} {self.rows[0][0]}"

    def tried(self, noise: float) -> Found:
        """Return what the default pack says of it after a made-up quiet prefix; steps are told as
        printed.
        """
        draw = random.Random(0)
        loss, norm = float(self.rows[0][1]), float(self.rows[0][2])
        lines = ["step,loss,grad_norm\n"]
        for step in range(1, QUIET_STEPS + 1):
            own_loss = loss * (1 + draw.gauss(0, min(noise, 0.02)))
            lines.append(f"{step},{own_loss},{norm * (1 + draw.gauss(0, noise))}\n")
        for place, (_, own_loss, own_norm) in enumerate(self.rows, QUIET_STEPS + 1):
            lines.append(f"{place},{own_loss},{own_norm}\n")
        found = tried(self.name, lines)
        for finding in found["findings"]:
            for key in ("first_bad_step", "fired_step", "resolved_step"):
                step = finding[key]
                if step is not None and step > QUIET_STEPS:
                    finding[key] = self.rows[step - QUIET_STEPS - 1][0]
        return found


def episodes() -> Iterator[Episode]:
    """Yield the stretches of rows of the BigScience logs, none where the data is not there."""
    path = DATA / "bloom" / "iterations.csv"
    if not path.is_file():
        return
    rows: list[tuple[int, str, str]] = []
    key = None
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            step = int(row["iteration"])
            mine = (row["run"], row["section"])
            if rows and (mine != key or not 0 < step - rows[-1][0] <= 220):
                yield Episode(*(key or ("", "")), tuple(rows))
                rows = []
            key = mine
            rows.append((step, row["lm_loss"], row["grad_norm"]))
    if rows:
        yield Episode(*(key or ("", "")), tuple(rows))


def stragglers(job: int) -> list[str]:
    """Return a trace of workers' batch times: a row per step and worker."""
    path = DATA / "stragglers" / f"minibatch_job_{job}_norm.csv"
    return path.read_text(encoding="utf-8").splitlines(keepends=True)
