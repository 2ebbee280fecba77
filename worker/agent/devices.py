"""What a node has to compute with, found out without torch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from trainmaster.wire import Device
from worker.launch import SlotDevice

MIB = 1 << 20
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_QUERY_TIMEOUT_S = 10.0


def find_devices(
    *,
    use_cuda: bool = True,
    claimed_kind: str | None = None,
    claimed_memory_bytes: int | None = None,
) -> list[Device]:
    """Return the CUDA devices of this node, or its CPU when it has none.

    Args:
        use_cuda: whether CUDA devices are looked for.
        claimed_kind: the kind that the node pretends to be; it computes on its CPU then.
        claimed_memory_bytes: what an emulated device says that it has.
    """
    devices = _cuda_devices() if use_cuda and claimed_kind is None else []
    if not devices:
        devices = [Device(kind="cpu", name=_cpu_name(), memory_bytes=_memory())]
    claims: dict[str, object] = {"kind": claimed_kind, "memory_bytes": claimed_memory_bytes}
    update = {name: value for name, value in claims.items() if value is not None}
    return [each.model_copy(update=update) for each in devices]


def device_of_slot(devices: Sequence[Device], slot: int) -> SlotDevice:
    """Return the device behind a slot: slots go round the node's devices."""
    index = slot % len(devices)
    kind = devices[index].kind
    return SlotDevice(kind=kind, index=index if kind == "cuda" else 0)


def parse_nvidia_smi(listing: str) -> list[Device]:
    """Read lines of "name, MiB"; one without a number (a device in an error state) is left out."""
    devices = []
    for line in listing.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if mebibytes.strip().isdecimal():
            device = Device(
                kind="cuda", name=name.strip(), memory_bytes=int(mebibytes.strip()) * MIB
            )
            devices.append(device)
    return devices


def _cuda_devices() -> list[Device]:
    if shutil.which(_QUERY[0]) is None:
        return []
    try:
        listing = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_nvidia_smi(listing.stdout)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "CPU")


def _memory() -> int:
    """Return the bytes of memory that processes here may use: the machine's, or the container's."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total
