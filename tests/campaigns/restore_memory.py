"""`python -m tests.campaigns.restore_memory --mb 600`: how much memory a restore takes beside what
it fills. Two ranks save matrices cut by columns, so much each; then each fills as much again, cut
in other ways, and its peak is read from the kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.checkpoint.restore import forget_peak, memory_bytes

RANKS = 2
SIDE = 1024
"""Of a matrix of float32: 4 MiB."""
CUTS = ("columns, as saved", "columns of the other", "rows", "whole matrices")


@dataclass(frozen=True, slots=True)
class Restored:
    """What one rank took for a restore.

    Attributes:
        share_bytes: filled.
        beyond_bytes: that the process held at most, beside what it held before.
    """

    cut: str
    rank: int
    share_bytes: int
    beyond_bytes: int
    seconds: float


def measure(folder: Path, share_bytes: int) -> list[Restored]:
    """Save and restore on ranks of their own; return what each took for each cut."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(RANKS):
        here, there = spawn.Pipe()
        processes.append(spawn.Process(target=_rank, args=(folder, rank, share_bytes, there)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    found = [each for pipe in pipes for each in pipe.recv()]
    for process in processes:
        process.join()
        assert process.exitcode == 0, "a rank failed"
    return found


def _rank(folder: Path, rank: int, share_bytes: int, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from worker.checkpoint.reader import open_checkpoint
    from worker.checkpoint.tensors import Shard
    from worker.checkpoint.writer import save
    from worker.storage import open_storage

    torch.set_num_threads(1)
    store = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    storage = open_storage((folder / "run").as_uri())
    half, whole = SIDE // RANKS, (SIDE, SIDE)
    names = [f"model/layers.{n}.w" for n in range(share_bytes * RANKS // (4 * SIDE * SIDE))]

    def share(cut: str) -> dict[str, torch.Tensor | Shard]:
        if cut == "whole matrices":
            return {name: torch.zeros(whole) for name in names[rank::RANKS]}
        if cut == "rows":
            at, shape = (rank * half, 0), (half, SIDE)
        else:
            at, shape = (0, (rank if "saved" in cut else 1 - rank) * half), (SIDE, half)
        return {name: Shard(torch.zeros(shape), at, whole) for name in names}

    mine = share(CUTS[0])
    for number, shard in enumerate(mine.values()):
        assert isinstance(shard, Shard)
        shard.tensor.add_(torch.arange(half) + rank * half + 7 * number)
    saved = save(
        storage,
        run="r1",
        generation=1,
        step=1,
        layout={},
        parent=None,
        tensors=mine,
        state={"step": 1} if rank == 0 else None,
        group=None,
        rank=rank,
        world_size=RANKS,
    )
    assert saved.location is not None, "it was stored"
    del mine
    found = []
    for cut in CUTS:
        wanted = share(cut)
        ctypes.CDLL(None).malloc_trim(0)  # what was freed counts as held until then
        forget_peak()
        before, started = memory_bytes("VmRSS"), time.perf_counter()
        opened = open_checkpoint(storage, saved.location, manifest_sha256=saved.manifest_sha256)
        loaded = opened.load(wanted)
        seconds, beyond = time.perf_counter() - started, memory_bytes("VmHWM") - before
        found.append(Restored(cut, rank, loaded.bytes, beyond, seconds))
        for name, got in wanted.items():
            tensor, column = (
                (got.tensor, got.global_offset[1]) if isinstance(got, Shard) else (got, 0)
            )
            right = torch.arange(column, column + tensor.shape[1]) + 7 * names.index(name)
            assert bool((tensor == right).all()), (cut, name)
        del wanted
    pipe.send(found)
    dist.destroy_process_group()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=600, help="that each rank fills")
    parser.add_argument("--folder", type=Path, help="on the disk to be used")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        found = measure(Path(made), given.mb * 1_000_000)
    print(
        "| cut | rank | its share, MiB | beside it at most, MiB | seconds |\n|---|---|---|---|---|"
    )
    for each in found:
        share, beyond = each.share_bytes / 2**20, each.beyond_bytes / 2**20
        print(f"| {each.cut} | {each.rank} | {share:.0f} | {beyond:.1f} | {each.seconds:.2f} |")


if __name__ == "__main__":
    main()
