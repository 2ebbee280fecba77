"""The few numbers that all ranks agree on at each step: added up in one order, told alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.distributed.ranks import A_HANG_S, FORKS
from worker.tree import add_up

VALUES = [1e16, 1.0, -1e16, 3e-7, 1.0, 2.0, 7.0, -3.0, 1e16, -1e16]


def _rank(rank: int, size: int, port: int, told: str) -> None:
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    assert dist.group.WORLD is not None
    values = torch.tensor([VALUES[rank], float(rank), 0.0], dtype=torch.float64)
    for _ in range(3):
        seen = values.clone()
        add_up(seen, dist.group.WORLD)
    Path(told).write_text(json.dumps(seen.tolist()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 3, 10])
def test_all_ranks_are_told_the_same_bits(tmp_path: Path, size: int) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = [tmp_path / f"{rank}" for rank in range(size)]
    processes = [
        FORKS.Process(target=_rank, args=(rank, size, store.port, str(path)))
        for rank, path in enumerate(told)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(A_HANG_S)
    found = [json.loads(path.read_text()) for path in told]
    assert all(each == found[0] for each in found)
    first = sum(VALUES[1 : min(size, 8)], VALUES[0])
    expected = first if size <= 8 else first + (VALUES[8] + VALUES[9])
    assert found[0] == [expected, sum(range(size)), 0.0]
