"""What Prometheus reads of a node's CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from worker.agent.device_watch import Health
from worker.agent.nvml import Reading

Values = Iterable[tuple[int, float | None]]
"""(device, value); None where it does not tell that."""


def families(node: str, health: Health) -> Iterator[Metric]:
    """Yield the families of a node's devices; a device that does not tell something has no series
    of it.
    """
    readings = sorted(dict(health.readings).items())

    def each(value_of: Callable[[Reading], float | None]) -> Values:
        return [(index, value_of(reading)) for index, reading in readings]

    def gauge(name: str, text: str, values: Values) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["node", "device"])
        for index, value in values:
            if value is not None:
                family.add_metric([node, str(index)], float(value))
        return family

    def counter(name: str, text: str, values: Values) -> Metric:
        family = CounterMetricFamily(name, text, labels=["node", "device"])
        for index, value in values:
            if value is not None:
                family.add_metric([node, str(index)], float(value))
        return family

    yield gauge(
        "trainmaster_gpu_utilization_ratio",
        "Share of the driver's last sampling period in which a kernel ran; label `device`.",
        each(lambda reading: reading.utilization_ratio),
    )
    yield gauge(
        "trainmaster_gpu_memory_used_bytes",
        "Memory in use on the device, by whomever; label `device`.",
        each(lambda reading: reading.memory_used_bytes),
    )
    yield gauge(
        "trainmaster_gpu_memory_bytes",
        "Memory that the device has; label `device`.",
        [(index, identity.memory_bytes) for index, identity in sorted(health.identities.items())],
    )
    yield gauge(
        "trainmaster_gpu_temperature_celsius",
        "Temperature of the device; label `device`.",
        each(lambda reading: reading.temperature_c),
    )
    yield gauge(
        "trainmaster_gpu_power_watts",
        "Power that the device draws; label `device`.",
        each(lambda reading: reading.power_w),
    )
    yield counter(
        "trainmaster_gpu_memory_errors_corrected",
        "Corrected (ECC) memory errors since the device's driver was loaded; label `device`.",
        each(lambda reading: reading.corrected),
    )
    yield counter(
        "trainmaster_gpu_memory_errors_uncorrected",
        "Uncorrectable (ECC) memory errors since the device's driver was loaded; label `device`.",
        each(lambda reading: reading.uncorrected),
    )
    yield counter(
        "trainmaster_gpu_xid_errors",
        "Errors (XID) that the device's driver reported since the agent started; label `device`.",
        [(index, health.xid_counts.get(index, 0)) for index in sorted(health.identities)],
    )
