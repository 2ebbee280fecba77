"""What ranks do to stores that are to be tried: S3 between two requests, a disk that fills up, a
folder that another node does not see.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.distributed.savers import KILLED, save_as, share_of, whole_state
from tests.fakes.storage import HauntedStorage
from trainmaster.checkpoint.stores import verify_stored
from trainmaster.errors import TrainmasterError
from trainmaster.storage import Storage
from worker.checkpoint.peers import Peers
from worker.checkpoint.same_store import prove_same_store
from worker.storage import open_storage
from worker.storage.s3 import PART_BYTES


def save_to_s3_until_killed(
    rank: int,
    world_size: int,
    root: str,
    environment: dict[str, str],
    killed_rank: int,
    before_event: int,
) -> dict[str, Any]:
    """Save to a bucket, with one rank dying ahead of its n-th look at or change of an object, or
    right after a change.
    """
    os.environ.update(environment)
    seen = 0

    def before(operation: str, path: str) -> None:
        nonlocal seen
        seen += operation != "chunk"
        if rank == killed_rank and seen == before_event:
            os._exit(KILLED)

    share = share_of(whole_state(), 1, rank, world_size)
    return save_as(HauntedStorage(open_storage(root), before), share, rank, world_size)


def die_in_an_upload(rank: int, world_size: int, root: str, environment: dict[str, str]) -> None:
    """Die when two parts of an object are on their way."""
    os.environ.update(environment)

    def chunks() -> Iterator[bytes]:
        yield bytes(PART_BYTES)
        yield bytes(PART_BYTES)
        yield bytes(PART_BYTES)
        os._exit(KILLED)

    open_storage(root).put("folder/file", chunks())


def save_on_a_small_disk(rank: int, world_size: int, folder: str) -> list[dict[str, Any]]:
    """Save to a file system of its own that has room, then has none, has some again, and at last
    takes nothing.
    """
    mount(folder, "size=256k")
    root = Path(folder)
    told, tensors = [], {"model/layers.0.weight": torch.ones(10_000)}
    for step in (10, 20, 30, 40):
        if step == 20:
            (root / "filler").write_bytes(bytes(190 << 10))
        if step == 30:
            (root / "filler").unlink()
        if step == 40:
            mount(folder, "size=256k", MS_REMOUNT | MS_RDONLY)
        storage = open_storage((root / "run").as_uri())
        told.append(save_as(storage, tensors, rank, world_size, step=step, state={"step": step}))
        told[-1]["sound"] = [name for name in storage.folders() if verify_stored(storage, name).ok]
    return told


MS_RDONLY, MS_REMOUNT = 1, 32
MS_REC_PRIVATE = 16384 | 1 << 18
CLONE_NEWNS = 0x20000


def mount(folder: str, options: str, flags: int = 0) -> None:
    """Mount memory on a folder for this process alone, or change how it is mounted.

    Raises:
        PermissionError: that is not allowed here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = bool(flags) or libc.unshare(CLONE_NEWNS) == 0
    if allowed and not flags:
        allowed = libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None) == 0
    how = (folder.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode())
    if not allowed or libc.mount(b"tmpfs", *how) != 0:
        raise PermissionError(ctypes.get_errno(), "mounting is not allowed here")


def may_mount(rank: int, world_size: int, folder: str) -> bool:
    """Whether a process of ours may mount."""
    try:
        mount(folder, "size=64k")
    except PermissionError:
        return False
    return True


def prove(rank: int, world_size: int, roots: list[str], fault: str = "") -> dict[str, Any]:
    """Prove that the store is the same, while each rank may see another one behind its URL."""
    storage = HauntedStorage(open_storage(roots[rank]), failing(fault if rank == 0 else ""))
    if fault == "twice" and rank == 0:
        storage = Forgetful(open_storage(roots[rank]))
    try:
        prove_same_store(
            storage,
            Peers(None, rank, world_size),
            rank=rank,
            nodes=["oak", "elm", "fir"],
            patience_s=0,
        )
    except TrainmasterError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


def failing(operation: str) -> Callable[[str, str], None]:
    def before(seen: str, path: str) -> None:
        if seen == operation:
            raise OSError(errno.ENOSPC, "No space left on device")

    return before


class Forgetful(HauntedStorage):
    """A store that knows no condition: whatever is created again is replaced."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, lambda *_: None)

    def create(self, path: str, data: bytes) -> None:  # type: ignore[override]
        self.put(path, [data])
