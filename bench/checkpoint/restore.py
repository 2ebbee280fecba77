"""`python -m bench.checkpoint.restore`: a verified restore on some ranks, beside reading the same
bytes and beside hashing as many, all from a cold cache and in turns. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from bench.spread import Spread

MB = 1_000_000
BLOCK = 16 << 20
TENSOR_BYTES = 8 * MB
MODES = ("raw", "digest", "restore")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    asked = parser.parse_args()
    told: dict[str, Any] = {"conditions": conditions(["torch"]), "cold": "posix_fadvise DONTNEED"}
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        for size in asked.mb:
            told[f"{size} MB"] = measure(Path(made) / f"{size}", size, asked)
    text = json.dumps(told, indent=1)
    print(text)
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "checkpoint-restore.json").write_text(text + "\n", encoding="utf-8")
    return 0


def measure(folder: Path, size_mb: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Have the ranks do each thing in turns; return GB/s of all ranks together."""
    folder.mkdir(parents=True)
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(asked.ranks):
        here, there = spawn.Pipe()
        arguments = (folder, rank, asked.ranks, size_mb * MB // asked.ranks, there)
        processes.append(spawn.Process(target=run_rank, args=arguments))
        processes[-1].start()
        pipes.append(here)
    file_bytes = sum(pipe.recv()["file_bytes"] for pipe in pipes)
    speeds: dict[str, list[float]] = {mode: [] for mode in MODES}
    cpu_s: dict[str, list[float]] = {mode: [] for mode in MODES}
    beyond = []
    for _ in range(asked.repetitions):
        for mode in MODES:
            for pipe in pipes:
                pipe.send(f"cold {mode}")
            for pipe in pipes:
                pipe.recv()
            started = time.perf_counter()
            for pipe in pipes:
                pipe.send(mode)
            answers = [pipe.recv() for pipe in pipes]
            seconds = time.perf_counter() - started
            speeds[mode].append(file_bytes / seconds / 1e9)
            cpu_s[mode].append(sum(answer["cpu_s"] for answer in answers) / file_bytes * 1e9)
            if mode == "restore":
                beyond += [answer["beyond_bytes"] for answer in answers]
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join()
    of_raw = [a / b for a, b in zip(speeds["restore"], speeds["raw"], strict=True)]
    of_digest = [a / b for a, b in zip(speeds["restore"], speeds["digest"], strict=True)]
    return {
        "gb_per_s": {mode: Spread.of(each).json() for mode, each in speeds.items()},
        "cpu_s_per_gb": {mode: Spread.of(each).json() for mode, each in cpu_s.items()},
        "restore_of_raw": Spread.of(of_raw).json(),
        "restore_of_digest": Spread.of(of_digest).json(),
        "memory_beyond_the_share_mib": round(max(beyond) / 2**20, 1),
    }


def run_rank(folder: Path, rank: int, world_size: int, size: int, pipe: Connection) -> None:
    """Save this rank's share once, then do what is asked until the end."""
    import torch
    import torch.distributed as dist

    from worker.checkpoint.reader import open_checkpoint
    from worker.checkpoint.writer import save
    from worker.storage import open_storage

    torch.set_num_threads(1)
    store = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    storage = open_storage((folder / "run").as_uri())
    count, numbers = max(1, size // TENSOR_BYTES), TENSOR_BYTES // 4
    share = {f"model/layers.{rank}.w{n:04d}": torch.randn(numbers) for n in range(count)}
    saved = save(
        storage,
        run="bench",
        generation=1,
        step=1,
        layout={},
        parent=None,
        tensors=share,
        state={"step": 1} if rank == 0 else None,
        group=None,
        rank=rank,
        world_size=world_size,
    )
    location = saved.location
    assert location is not None, "it was stored"
    file = folder / f"run/g1-step1/rank-{rank:05d}.safetensors"
    threads = max(1, len(os.sched_getaffinity(0)) // world_size)

    def restore() -> None:
        opened = open_checkpoint(storage, location, manifest_sha256=saved.manifest_sha256)
        opened.load(share)

    doing: dict[str, Callable[[], None]] = {
        "raw": lambda: read_through(file),
        "digest": lambda: hash_as_many(file.stat().st_size, threads),
        "restore": restore,
    }
    pipe.send({"file_bytes": file.stat().st_size})
    while (word := pipe.recv()) != "end":
        if word.startswith("cold "):
            make_cold(file)
            pipe.send({})
            continue
        forget_peak()
        before, cpu_s = memory_bytes("VmRSS"), time.process_time()
        doing[word]()
        cpu_s = time.process_time() - cpu_s
        pipe.send({"beyond_bytes": memory_bytes("VmHWM") - before, "cpu_s": cpu_s})
    dist.destroy_process_group()


def make_cold(file: Path) -> None:
    """Have the file's pages dropped from the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read_through(file: Path) -> None:
    """Read all bytes, into one buffer, and look at none."""
    buffer = bytearray(BLOCK)
    descriptor = os.open(file, os.O_RDONLY)
    at = 0
    while read := os.preadv(descriptor, [buffer], at):
        at += read
    os.close(descriptor)


def hash_as_many(size: int, threads: int) -> None:
    """Hash `size` bytes of memory, a block at a time."""
    block = os.urandom(BLOCK)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: hashlib.sha256(block).digest(), range(-(-size // BLOCK))))


def memory_bytes(of: str) -> int:
    """Return what this process holds now (VmRSS), or held at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{of}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status tells no {of}")


def forget_peak() -> None:
    """Begin VmHWM anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
