"""NVIDIA's management library, as far as an agent asks it: a small interface, and the one class
that fills it with `pynvml` (extra `nvidia`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from trainmaster.errors import UnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """A device as the driver counts them: `index` in the order of the PCI bus."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device told at one moment; None where it does not tell that.

    Attributes:
        utilization_ratio: share of the last sampling period in which a kernel ran.
        corrected, uncorrected: ECC errors of its memory since the driver was loaded.
    """

    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    corrected: int | None = None
    uncorrected: int | None = None


class Nvml(Protocol):
    """What an agent asks of the driver."""

    def identities(self) -> list[Identity]:
        """Return the devices that answer."""
        ...

    def reading(self, index: int) -> Reading:
        """Return what a device tells now.

        Raises:
            UnavailableError: it does not answer.
        """
        ...

    def xids(self) -> list[tuple[int, int]]:
        """Return (index, code) of the errors that were reported since the last call."""
        ...


def open_nvml() -> Nvml | None:
    """Return the driver's interface, or None where the library or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return PyNvml(pynvml)


class PyNvml:
    """`Nvml` by `pynvml`.

    Args:
        library: the module, initialised.
    """

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._events: Any = None
        self._watch_xids()

    def identities(self) -> list[Identity]:
        found = []
        for index in range(self._told(self._nvml.nvmlDeviceGetCount) or 0):
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(
                    Identity(
                        index,
                        str(self._nvml.nvmlDeviceGetUUID(handle)),
                        str(self._nvml.nvmlDeviceGetName(handle)),
                        int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total),
                    )
                )
        return found

    def reading(self, index: int) -> Reading:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except nvml.NVMLError as error:
            raise UnavailableError(f"CUDA device {index} does not answer: {error}") from error

        def ecc(kind: int) -> int | None:
            return self._told(
                lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))
            )

        return Reading(
            utilization_ratio=self._told(
                lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            ),
            memory_used_bytes=used,
            temperature_c=self._told(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            power_w=self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            corrected=ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            uncorrected=ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )

    def xids(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while self._events is not None:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # none is waiting
                break
            found.append((self._index_of(data.device), int(data.eventData)))
        return found

    def _index_of(self, handle: Any) -> int:
        """Return a device's index; -1 where it does not tell it any more."""
        index = self._told(lambda: int(self._nvml.nvmlDeviceGetIndex(handle)))
        return -1 if index is None else index

    def _watch_xids(self) -> None:
        """Have the driver keep errors for `xids`, where it may be asked to."""
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(
                        handle, nvml.nvmlEventTypeXidCriticalError, events
                    )
            self._events = events

    def _told(self, ask: Callable[[], T]) -> T | None:
        """Return an answer, or None where the device does not tell that."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None
