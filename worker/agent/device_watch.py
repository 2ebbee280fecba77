"""The health of a node's CUDA devices: what they tell becomes metrics, their errors events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from trainmaster.errors import UnavailableError
from worker.agent.nvml import Identity, Nvml, Reading

EVERY_S = 2.0

XIDS: Mapping[int, str] = {
    13: "an exception in a kernel, most often the program's",
    31: "a memory fault, most often the program's",
    43: "a channel was stopped after an error of the program",
    45: "work was removed after an earlier error",
    48: "an uncorrectable error of its memory",
    61: "a breakpoint or warning of its micro-controller",
    62: "a halt of its micro-controller",
    63: "rows of its memory are to be replaced",
    64: "rows of its memory could not be replaced",
    74: "an error of its NVLink",
    79: "it has fallen off the bus",
    92: "a high rate of corrected memory errors",
    94: "an uncorrectable memory error, contained to its program",
    95: "an uncorrectable memory error, not contained",
    119: "its system processor does not answer",
    120: "an error of its system processor",
}
"""What codes mean, in short (NVIDIA, "XID Errors")."""

Happened = tuple[str, dict[str, Any]]
"""Kind and data of an event."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the devices: by index what each told, or why it did not; and new errors."""

    told: Mapping[int, Reading | str]
    xids: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Health:
    """What is known of the devices.

    Attributes:
        identities: by index, those that ranks of this node may use.
        readings: of those that told something at the last look.
        xid_counts: errors reported so far in this agent's life.
    """

    identities: Mapping[int, Identity]
    readings: dict[int, Reading] = field(default_factory=dict)
    xid_counts: dict[int, int] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def take(self, look: Look) -> list[Happened]:
        """Take in a look; return what has happened since the one before."""
        happened: list[Happened] = []
        for index, code in look.xids:
            if index in self.identities:
                self.xid_counts[index] = self.xid_counts.get(index, 0) + 1
                happened.append(self._error_reported(index, code))
        for index, told in look.told.items():
            if isinstance(told, str):
                self.readings.pop(index, None)
                if index not in self.silent:
                    happened.append(("device_fell_silent", self._about(index, told)))
                self.silent.add(index)
                continue
            self.silent.discard(index)
            happened += self._memory_damaged(index, self.readings.get(index), told)
            self.readings[index] = told
        return happened

    def _error_reported(self, index: int, code: int) -> Happened:
        meaning = XIDS.get(code, "see NVIDIA's list of XID errors")
        because = f"{self._name(index)} reported XID {code}: {meaning}"
        return "device_error_reported", {**self._about(index, because), "xid": code}

    def _memory_damaged(self, index: int, before: Reading | None, now: Reading) -> list[Happened]:
        """Errors from before this agent's life are told with its first look, for they may stand
        behind what it sees.
        """
        count = now.uncorrected or 0
        known = (before.uncorrected or 0) if before is not None else 0
        if count <= known:
            return []
        because = (
            f"{self._name(index)} has {count - known} more uncorrectable memory errors "
            f"({count} since its driver was loaded)"
        )
        return [("device_memory_damaged", {**self._about(index, because), "uncorrected": count})]

    def _name(self, index: int) -> str:
        found = self.identities[index]
        return f"CUDA device {index} ({found.name}, {found.uuid})"

    def _about(self, index: int, because: str) -> dict[str, Any]:
        return {"device": index, "uuid": self.identities[index].uuid, "because": because}


class DeviceWatch:
    """Looks at the devices every `EVERY_S`, in another thread: a sick driver may not answer.

    Args:
        nvml: None where there is nothing to watch.
        health: of the devices to watch.
        tell: takes an event's kind and data.
        wake: called from the executor's thread when a look is done.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        health: Health,
        *,
        executor: Executor,
        tell: Callable[[str, dict[str, Any]], None],
        wake: Callable[[], None],
    ) -> None:
        self._nvml = nvml
        self._health = health
        self._executor = executor
        self._tell = tell
        self._wake = wake
        self._future: Future[Look] | None = None
        self._due = 0.0

    def poll(self, now: float) -> None:
        """Take in a look that is done; begin one that is due."""
        if self._nvml is None or not self._health.identities:
            return
        if self._future is not None:
            if not self._future.done():
                return
            look, self._future = self._future, None
            for kind, data in self._health.take(look.result()):
                self._tell(kind, data)
        if now >= self._due:
            self._due = now + EVERY_S
            indices = sorted(self._health.identities)
            self._future = self._executor.submit(look_at, self._nvml, indices)
            self._future.add_done_callback(lambda _: self._wake())


def look_at(nvml: Nvml, indices: Sequence[int]) -> Look:
    """Ask each device once."""
    told: dict[int, Reading | str] = {}
    for index in indices:
        try:
            told[index] = nvml.reading(index)
        except UnavailableError as error:
            told[index] = error.message
    return Look(told, nvml.xids())
