"""Two ranks that save and compute: started together, measured together."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.checkpoint import savers
from bench.checkpoint.state import Memcpy, bytes_of, state_of
from bench.checkpoint.writes import Image
from worker.storage import open_storage

RANKS = 2
IDLE_S = 0.5
"""For how long the speed of training is measured before each save that it is measured beside."""
_SHARED_MEMORY = "/dev/shm"  # that is where states are kept


def measure(num_bytes: int, repetitions: int, folder: Path) -> list[dict[str, Any]]:
    """Return what each repetition measured, for a state of so many bytes over all ranks."""
    context = multiprocessing.get_context("spawn")
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "told.json"
    processes = [
        context.Process(target=_rank, args=(rank, num_bytes, repetitions, folder, out))
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes), "a rank failed"
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def _rank(rank: int, num_bytes: int, repetitions: int, folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=5),
    )
    tensors = state_of(num_bytes // RANKS, rank)
    copy, image = Memcpy(bytes_of(tensors)), Image(bytes_of(tensors))
    groups = [dist.new_group(backend="gloo") for _ in range(4)]
    memory = Path(tempfile.gettempdir() if rank else tempfile.mkdtemp(dir=_SHARED_MEMORY))
    memory = Path(_told_by_first(str(memory)))
    ways: dict[str, savers.Way] = {
        "ours": savers.Ours(tensors, groups[0], None),
        "ours, kept in memory": savers.Ours(tensors, groups[1], memory),
        "torch.save": savers.TorchSave(tensors),
        "dcp.save": savers.Dcp(tensors, groups[2], None),
        "dcp async, copy in the call": savers.Dcp(tensors, groups[3], "copy"),
        "dcp async, copy in a thread": savers.Dcp(tensors, groups[3], "thread"),
    }
    told = []
    for number in range(-1, repetitions):
        seen = _once(ways, copy, image, folder, number + 2)
        if number >= 0:  # the first warms up
            told.append(seen)
    for way in ways.values():
        way.close()
    dist.barrier()
    if rank == 0:
        shutil.rmtree(memory, ignore_errors=True)
        out.write_text(json.dumps(told))
    dist.destroy_process_group()


def _once(
    ways: dict[str, savers.Way], copy: Memcpy, image: Image, folder: Path, number: int
) -> dict[str, Any]:
    told: dict[str, Any] = {"memcpy_s": _most(copy)}
    # By turns, so that neither always finds the disk as the other has left it.
    for kind in ("raw", "hashed") if number % 2 else ("hashed", "raw"):
        began_cpu = time.process_time()
        told[f"{kind}_write_s"] = _written(image, folder, kind)
        told[f"{kind}_write_cpu_s"] = _summed(time.process_time() - began_cpu)
    told["digests_cpu_s"] = _summed(image.digest())
    for turn, (name, way) in enumerate(ways.items()):
        began_cpu = time.process_time()
        at_rest = _save(way, folder, 100 * number + 2 * turn, lambda finish: finish())
        cpu_s = _summed(time.process_time() - began_cpu)
        idle = _least(lambda: _steps_until(time.perf_counter() + IDLE_S))
        beside = _Training()
        busy = _save(way, folder, 100 * number + 2 * turn + 1, beside)
        [slowest] = _gathered([-beside.steps_per_s])
        ratio = -slowest / idle if slowest else None
        told[name] = {
            "stall_s": at_rest[0],
            "stall_busy_s": busy[0],
            "whole_s": at_rest[1],
            "whole_busy_s": busy[1],
            "cpu_s": cpu_s,
            "speed_ratio": ratio,
            "lost_s": busy[0] + (0.0 if ratio is None else (1 - ratio) * (busy[1] - busy[0])),
        }
    again = _most(copy)
    told["memcpy_s"] = (told["memcpy_s"] + again) / 2
    return told


def _save(
    way: savers.Way, folder: Path, number: int, meanwhile: Callable[[Callable[[], None]], None]
) -> list[float]:
    """Save once; return how long training stood still and how long all took, at most on a rank.

    Args:
        meanwhile: is given what waits for the save's end, and calls it.
    """
    place = folder / f"save-{number}"
    place.mkdir(exist_ok=True)
    dist.barrier()
    began = time.perf_counter()
    begun = way.begin(place, number)
    meanwhile(begun.finish)
    whole = time.perf_counter() - began
    seen = _gathered([begun.stall_s, whole])
    savers.remove(place)
    return seen


class _Training:
    """Computes until a save is over."""

    steps_per_s = 0.0
    """0 where the save was over at once."""

    def __call__(self, finish: Callable[[], None]) -> None:
        waiting = threading.Thread(target=finish)
        began, steps = time.perf_counter(), 0
        waiting.start()
        while waiting.is_alive():
            _step()
            steps += 1
        waiting.join()
        if steps > 1:
            self.steps_per_s = steps / (time.perf_counter() - began)


def _steps_until(end: float) -> float:
    began, steps = time.perf_counter(), 0
    while time.perf_counter() < end:
        _step()
        steps += 1
    return steps / (time.perf_counter() - began)


_MATRIX = torch.ones(384, 384)


def _step() -> None:
    """A few milliseconds of what training does."""
    torch.mm(_MATRIX, _MATRIX)
    torch.mm(_MATRIX, _MATRIX)


def _written(image: Image, folder: Path, kind: str) -> float:
    place = folder / kind
    place.mkdir(exist_ok=True)
    storage, name = open_storage(place.as_uri()), f"rank-{dist.get_rank()}"
    if kind == "raw":
        seconds = _most(lambda: image.raw(place / name))
    else:
        seconds = _most(lambda: image.hashed(storage, name))
    savers.remove(place)
    return seconds


def _most(seconds: Callable[[], float]) -> float:
    dist.barrier()
    return _gathered([seconds()])[0]


def _least(value: Callable[[], float]) -> float:
    dist.barrier()
    return -_gathered([-value()])[0]


def _gathered(values: list[float]) -> list[float]:
    most = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.tolist()


def _summed(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def _told_by_first(text: str) -> str:
    told = [text]
    dist.broadcast_object_list(told)
    return told[0]
