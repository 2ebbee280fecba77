"""Ways of saving, each asked the same: how long did training stand still, when was all durable."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from worker.checkpoint.memory import MemoryTier
from worker.checkpoint.part import Copies
from worker.checkpoint.peers import Peers
from worker.checkpoint.saver import Origin, Saver
from worker.storage import open_storage


@dataclass(slots=True)
class Begun:
    """A save under way: seconds that training stood still, and what waits for the rest."""

    stall_s: float
    finish: Callable[[], None]


class Way(Protocol):
    """Begins to save the state as step `number` into a folder."""

    def begin(self, folder: Path, number: int) -> Begun: ...

    def close(self) -> None: ...


class Ours:
    """`worker.checkpoint.saver`, with the memory tier or without."""

    def __init__(
        self, tensors: dict[str, torch.Tensor], group: dist.ProcessGroup, memory: Path | None
    ) -> None:
        self._tensors = tensors
        self._rank, size = dist.get_rank(), dist.get_world_size()
        self._peers = Peers(group, self._rank, size)
        self._memory = memory
        segments = memory / "segments-g1" if memory is not None else None
        self._copies = Copies(segments, self._rank, sharers=size)
        self._savers: list[Saver] = []

    def begin(self, folder: Path, number: int) -> Begun:
        tier = None
        if self._memory is not None:
            tier = MemoryTier(self._memory, self._peers, ["here"] * dist.get_world_size())
        saver = Saver(
            open_storage(folder.as_uri()),
            Origin("bench", 1, {}, None),
            peers=self._peers,
            copies=self._copies,
            memory=tier,
            when_busy="wait",
            any_rank=lambda says: says,
            tell=None,
        )
        if not self._savers:
            saver.prepare(self._tensors)
        self._savers.append(saver)
        state = {"step": number} if self._rank == 0 else None
        stall_s = saver.begin(number, self._tensors, state)

        def finish() -> None:
            saver.finish()
            assert saver.last is not None, "something was saved"
            assert saver.last.because is None, saver.last.because

        return Begun(stall_s, finish)

    def close(self) -> None:
        for saver in self._savers:
            saver.close(forget=True)
        self._copies.discard()


class TorchSave:
    """`torch.save` of each rank's own part, which is not synced."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def begin(self, folder: Path, number: int) -> Begun:
        started = time.perf_counter()
        torch.save(self._tensors, folder / f"rank-{dist.get_rank()}.pt")
        return Begun(time.perf_counter() - started, lambda: None)

    def close(self) -> None:
        pass


class Dcp:
    """`torch.distributed.checkpoint`.

    Args:
        staging: None to save synchronously; "copy" to wait for the copy within the call; "thread"
            to have it copied by another thread, which must end before the optimizer may go on.
    """

    def __init__(
        self, tensors: dict[str, torch.Tensor], group: dist.ProcessGroup, staging: str | None
    ) -> None:
        self._tensors = tensors
        self._group = group
        self._staging = staging
        self._stager = None
        if staging is not None:
            options = StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=False,
                use_async_staging=staging == "thread",
                use_non_blocking_copy=False,
            )
            self._stager = DefaultStager(options)

    def begin(self, folder: Path, number: int) -> Begun:
        started = time.perf_counter()
        where = str(folder / "dcp")
        if self._stager is None:
            dcp.save(self._tensors, checkpoint_id=where, process_group=self._group)
            return Begun(time.perf_counter() - started, lambda: None)
        under_way: Any = dcp.async_save(
            self._tensors,
            checkpoint_id=where,
            process_group=self._group,
            async_stager=self._stager,
        )
        if hasattr(under_way, "staging_completion"):
            under_way.staging_completion.result()
            return Begun(time.perf_counter() - started, under_way.upload_completion.result)
        return Begun(time.perf_counter() - started, under_way.result)

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


def remove(folder: Path) -> None:
    """Remove what was saved, by one rank once all are done."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
