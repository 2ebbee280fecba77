"""What CUDA devices tell: metrics, and events for what went wrong. A fake tells it here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from trainmaster.errors import UnavailableError
from worker.agent.device_watch import EVERY_S, DeviceWatch, Health
from worker.agent.exporter import Exporter
from worker.agent.nvml import Identity, PyNvml, Reading

IDENTITIES = {
    0: Identity(0, "GPU-a1", "NVIDIA A100", 40 << 30),
    1: Identity(1, "GPU-b2", "NVIDIA A100", 40 << 30),
}
WELL = Reading(0.5, 8 << 30, 61.0, 250.0, corrected=3, uncorrected=0)


class Driver:
    """A driver with two devices, which tell what a test wants."""

    def __init__(self) -> None:
        self.told: dict[int, Reading | None] = {0: WELL, 1: WELL}
        self.waiting: list[tuple[int, int]] = []

    def identities(self) -> list[Identity]:
        return list(IDENTITIES.values())

    def reading(self, index: int) -> Reading:
        told = self.told[index]
        if told is None:
            raise UnavailableError(f"CUDA device {index} does not answer: GPU is lost")
        return told

    def xids(self) -> list[tuple[int, int]]:
        waiting, self.waiting = self.waiting, []
        return waiting


class Node:
    """An agent's watch over a driver, and what came of it."""

    def __init__(self, driver: Driver) -> None:
        self.exporter = Exporter("n1", "cuda", link_bytes_per_s=None, health=Health(IDENTITIES))
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.now = 0.0
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._watch = DeviceWatch(
            driver,
            self.exporter.health,
            executor=self._executor,
            tell=lambda kind, data: self.events.append((kind, data)),
            wake=lambda: None,
        )

    def look(self) -> None:
        self._watch.poll(self.now)
        self._executor.submit(int).result()  # the look before it is done then
        self._watch.poll(self.now)
        self.now += EVERY_S

    def shown(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        registry.register(self.exporter)
        return registry.get_sample_value(name, {"node": "n1", **labels})


def test_what_devices_tell_is_shown_by_device() -> None:
    driver = Driver()
    driver.told[1] = Reading(memory_used_bytes=1 << 30)
    node = Node(driver)
    node.look()
    assert node.shown("trainmaster_gpu_utilization_ratio", device="0") == 0.5
    assert node.shown("trainmaster_gpu_utilization_ratio", device="1") is None
    assert node.shown("trainmaster_gpu_memory_used_bytes", device="1") == 1 << 30
    assert node.shown("trainmaster_gpu_memory_bytes", device="1") == 40 << 30
    assert node.shown("trainmaster_gpu_temperature_celsius", device="0") == 61
    assert node.shown("trainmaster_gpu_power_watts", device="0") == 250
    assert node.shown("trainmaster_gpu_memory_errors_corrected_total", device="0") == 3
    assert node.shown("trainmaster_gpu_memory_errors_uncorrected_total", device="0") == 0
    assert node.shown("trainmaster_gpu_xid_errors_total", device="0") == 0
    assert node.events == []


def test_an_xid_is_an_event_and_a_count() -> None:
    driver = Driver()
    node = Node(driver)
    node.look()
    driver.waiting = [(1, 79), (1, 999), (-1, 79)]
    node.look()
    assert node.events == [
        (
            "device_error_reported",
            {
                "device": 1,
                "uuid": "GPU-b2",
                "because": "CUDA device 1 (NVIDIA A100, GPU-b2) reported XID 79: it has fallen off "
                "the bus",
                "xid": 79,
            },
        ),
        ("device_error_reported", node.events[1][1]),
    ]
    assert node.shown("trainmaster_gpu_xid_errors_total", device="1") == 2


def test_uncorrectable_memory_errors_are_told_when_there_are_more() -> None:
    driver = Driver()
    driver.told[0] = Reading(uncorrected=2)
    node = Node(driver)
    node.look()
    node.look()
    driver.told[0] = Reading(uncorrected=5)
    node.look()
    told = [data["because"].partition("has ")[2] for _, data in node.events]
    assert told == [
        "2 more uncorrectable memory errors (2 since its driver was loaded)",
        "3 more uncorrectable memory errors (5 since its driver was loaded)",
    ]
    assert {kind for kind, _ in node.events} == {"device_memory_damaged"}


def test_a_device_that_does_not_answer_is_told_once_and_has_no_series() -> None:
    driver = Driver()
    driver.told[1] = None
    node = Node(driver)
    node.look()
    node.look()
    assert [kind for kind, _ in node.events] == ["device_fell_silent"]
    assert "GPU is lost" in node.events[0][1]["because"]
    assert node.shown("trainmaster_gpu_temperature_celsius", device="1") is None
    driver.told[1] = WELL
    node.look()
    driver.told[1] = None
    node.look()
    assert [kind for kind, _ in node.events] == ["device_fell_silent"] * 2


class Error(Exception):
    pass


class Library:
    """The few functions of pynvml that are used, with one device that has no ECC."""

    NVMLError = Error
    NVML_VOLATILE_ECC = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_TEMPERATURE_GPU = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self) -> None:
        self.lost = False
        self.waiting = [48]

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._answer(name, *arguments)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if self.lost or "Ecc" in name:
            raise Error("not supported")
        if name == "nvmlEventSetWait_v2":
            if not self.waiting:
                raise Error("timeout")
            return Record(device="handle", eventData=self.waiting.pop())
        return {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetUUID": "GPU-a1",
            "nvmlDeviceGetName": "NVIDIA A100",
            "nvmlDeviceGetMemoryInfo": Record(total=100, used=40),
            "nvmlDeviceGetUtilizationRates": Record(gpu=90, memory=10),
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetPowerUsage": 123_000,
            "nvmlDeviceGetIndex": 0,
        }.get(name, "handle")


class Record:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_pynvml_is_asked_in_its_own_units() -> None:
    library = Library()
    nvml = PyNvml(library)
    assert nvml.identities() == [Identity(0, "GPU-a1", "NVIDIA A100", 100)]
    assert nvml.reading(0) == Reading(0.9, 40, 55.0, 123.0, None, None)
    assert nvml.xids() == [(0, 48)]
    assert nvml.xids() == []
    library.lost = True
    with pytest.raises(UnavailableError, match="CUDA device 0 does not answer"):
        nvml.reading(0)


def test_the_library_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    used = [
        "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID",
        "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
        "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2",
        "nvmlDeviceGetIndex", "NVMLError", "NVML_VOLATILE_ECC", "NVML_TEMPERATURE_GPU",
        "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
        "nvmlEventTypeXidCriticalError",
    ]  # fmt: skip
    assert [name for name in used if not hasattr(pynvml, name)] == []
