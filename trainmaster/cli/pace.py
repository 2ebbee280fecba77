"""How far a run is, and when it will be done, as seen from outside. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from trainmaster.cli.quantities import duration_text, number_text

TERMINAL = frozenset({"succeeded", "failed", "stopped"})
_RATE_WINDOW = 30


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `eta_s` is None while there is no rate to judge by."""

    state: str
    step: int
    target: int
    loss: float | str | None
    tokens_per_s: float | None
    generation: int
    eta_s: float | None
    because: str

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state in TERMINAL

    def numbers(self) -> str:
        """Return loss, speed, remaining time and state in one line."""
        parts = [f"loss {number_text(self.loss)}", f"{number_text(self.tokens_per_s)} tokens/s"]
        if not self.over:
            parts.append(f"ETA {duration_text(self.eta_s)}")
        if self.generation > 1:
            parts.append(f"generation {self.generation}")
        parts.append(self.state)
        return " · ".join(parts)


class Pace:
    """Steps per second as seen from outside, over the last looks of one generation."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)
        self._generation: int | None = None

    def progress(self, run: dict[str, Any], now: float) -> Progress:
        """Return how far `run` (as `GET /v1/runs/{id}` answers) is."""
        step, target = run.get("step") or 0, run.get("target_steps") or 0
        if run["generation"] != self._generation or run["state"] != "running":
            self._seen.clear()
            self._generation = run["generation"]
        if not self._seen or step != self._seen[-1][1]:
            self._seen.append((now, step))
        (first_at, first_step), (last_at, last_step) = self._seen[0], self._seen[-1]
        eta_s = None
        if last_step > first_step and last_at > first_at:
            rate = (last_step - first_step) / (last_at - first_at)
            eta_s = max(0.0, (target - last_step) / rate - (now - last_at))
        return Progress(
            state=run["state"],
            step=step,
            target=target,
            loss=run.get("loss"),
            tokens_per_s=run.get("tokens_per_s"),
            generation=run["generation"],
            eta_s=eta_s,
            because=run.get("because") or "",
        )
