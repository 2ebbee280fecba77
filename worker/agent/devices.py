"""What a node has to compute with, found out without torch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from trainmaster.layout import device_behind
from trainmaster.wire import Device
from worker.agent.nvml import Identity, Nvml
from worker.launch import SlotDevice

MIB = 1 << 20
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_QUERY_TIMEOUT_S = 10.0


def find_devices(
    *,
    cuda: Sequence[Identity] = (),
    claimed_kind: str | None = None,
    claimed_memory_bytes: int | None = None,
) -> list[Device]:
    """Return the CUDA devices of this node as its ranks count them, or its CPU when it has none.

    Args:
        cuda: the devices that ranks may use, in their order.
        claimed_kind: the kind that the node pretends to be; it computes on its CPU then.
        claimed_memory_bytes: what an emulated device says that it has.
    """
    devices = [Device(kind="cuda", name=each.name, memory_bytes=each.memory_bytes) for each in cuda]
    if not devices or claimed_kind is not None:
        devices = [Device(kind="cpu", name=_cpu_name(), memory_bytes=_memory())]
    claims: dict[str, object] = {"kind": claimed_kind, "memory_bytes": claimed_memory_bytes}
    update = {name: value for name, value in claims.items() if value is not None}
    return [each.model_copy(update=update) for each in devices]


def cuda_devices(nvml: Nvml | None, visible: str | None) -> list[Identity]:
    """Return the CUDA devices that ranks see, in the order in which torch counts them.

    Args:
        nvml: the driver's library; without it the driver's own tool is asked.
        visible: CUDA_VISIBLE_DEVICES, which ranks inherit; None where it is not set.
    """
    found = nvml.identities() if nvml is not None else _asked_of_nvidia_smi()
    return seen_of(found, visible)


def seen_of(found: Sequence[Identity], visible: str | None) -> list[Identity]:
    """Return the devices that CUDA_VISIBLE_DEVICES names, by number or beginning of the UUID. As
    CUDA does, what follows an unknown name is not read.
    """
    if visible is None:
        return list(found)
    seen: list[Identity] = []
    for name in (word.strip() for word in visible.split(",")):
        is_uuid = name.startswith("GPU-")
        named = [
            each
            for each in found
            if (each.uuid.startswith(name) if is_uuid else str(each.index) == name)
        ]
        if len(named) != 1:
            break
        seen += named
    return seen


def device_of_slot(devices: Sequence[Device], slot: int) -> SlotDevice:
    """Return the device behind a slot."""
    index = device_behind(slot, len(devices))
    kind = devices[index].kind
    is_cuda = kind == "cuda"
    return SlotDevice(kind=kind, index=index if is_cuda else 0, runs_ahead=is_cuda)


def parse_nvidia_smi(listing: str) -> list[Identity]:
    """Read lines of "index, uuid, name, MiB"; one without numbers (a device in an error state) is
    left out.
    """
    found = []
    for line in listing.splitlines():
        index, _, rest = line.partition(",")
        uuid, _, rest = rest.partition(",")
        name, _, mebibytes = rest.rpartition(",")
        if index.strip().isdecimal() and mebibytes.strip().isdecimal():
            size = int(mebibytes.strip()) * MIB
            found.append(Identity(int(index), uuid.strip(), name.strip(), size))
    return found


def _asked_of_nvidia_smi() -> list[Identity]:
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
