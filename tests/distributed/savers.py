"""Real ranks over Gloo that only save: forked from a process that has imported torch already."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.fakes.storage import HauntedStorage
from trainmaster.checkpoint.manifest import Parent
from trainmaster.checkpoint.tiling import Box
from trainmaster.errors import TrainmasterError
from trainmaster.storage import Storage
from worker.checkpoint.memory import MemoryTier
from worker.checkpoint.part import Copies
from worker.checkpoint.peers import Peers
from worker.checkpoint.saver import Origin, Saver
from worker.checkpoint.tensors import Shard
from worker.checkpoint.writer import save
from worker.storage import open_storage

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["worker.train", "worker.checkpoint.writer"])

Tensors = Mapping[str, torch.Tensor | Shard]
KILLED = 99


ROWS = 40
"""Of the largest tensor, each of about a KiB."""


def whole_state(seed: int = 0, rows: int = ROWS) -> dict[str, torch.Tensor]:
    """A small state with every awkward shape: scalars, no elements, one row, odd sizes, halves."""
    made = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model/layers.0.weight": (6, 8),
        "model/layers.1.weight": (5, 4, 3),
        "model/layers.1.bias": (7,),
        "optimizer/layers.0.weight/exp_avg": (6, 8),
        "optimizer/layers.0.weight/step": (),
        "optimizer/layers.1.bias/exp_avg": (1,),
        "model/nothing": (0, 5),
    }
    state = {name: torch.randn(shape, generator=made) for name, shape in shapes.items()}
    state["model/layers.1.bias"] = state["model/layers.1.bias"].to(torch.bfloat16)
    state["model/layers.2.weight"] = torch.randn(rows, 257, generator=made)
    return state


def cut(shape: tuple[int, ...], parts: int, draw: random.Random) -> list[Box]:
    """Cut a tensor into as many boxes, some perhaps empty."""
    boxes = [Box((0,) * len(shape), shape)]
    while len(boxes) < parts:
        box = boxes.pop(draw.randrange(len(boxes)))
        axis = draw.randrange(len(shape))
        at = draw.randint(0, box.shape[axis])
        low, high, offset = list(box.shape), list(box.shape), list(box.offset)
        low[axis], high[axis] = at, box.shape[axis] - at
        offset[axis] += at
        boxes += [Box(box.offset, tuple(low)), Box(tuple(offset), tuple(high))]
    return boxes


def share_of(
    state: Mapping[str, torch.Tensor], layout: int, rank: int, world_size: int
) -> dict[str, Shard]:
    """What `rank` holds in the random layout of that number: whole tensors, and parts of others."""
    draw = random.Random(layout)
    share: dict[str, Shard] = {}
    for name, tensor in state.items():
        owner = draw.randrange(world_size)
        if tensor.dim() and draw.random() < 0.7:
            box = cut(tuple(tensor.shape), world_size, draw)[rank]
        elif owner == rank:
            box = Box((0,) * tensor.dim(), tuple(tensor.shape))
        else:
            continue
        index = tuple(slice(low, high) for low, high in zip(box.offset, box.end, strict=True))
        share[name] = Shard(tensor[index].clone(), box.offset, tuple(tensor.shape))
    return share


def save_as(
    storage: Storage, tensors: Tensors, rank: int, world_size: int, **changes: Any
) -> dict[str, Any]:
    """Save, and tell what came of it in JSON."""
    fields: dict[str, Any] = {
        "run": "r1",
        "generation": 1,
        "step": 20,
        "layout": {"ranks": world_size},
        "parent": None,
        "state": {"step": 20} if rank == 0 else None,
        "group": None,
        **changes,
    }
    if isinstance(fields["parent"], dict):
        fields["parent"] = Parent.model_validate(fields["parent"])
    try:
        saved = save(storage, tensors=tensors, rank=rank, world_size=world_size, **fields)
    except (TrainmasterError, RuntimeError, AssertionError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {
        "location": saved.location,
        "manifest_sha256": saved.manifest_sha256,
        "bytes": saved.bytes,
        "files": saved.files,
    }


def save_layout(
    rank: int, world_size: int, root: str, layout: int, rows: int = ROWS, **changes: Any
) -> dict[str, Any]:
    """Save a random layout of the whole state."""
    share = share_of(whole_state(rows=rows), layout, rank, world_size)
    return save_as(open_storage(root), share, rank, world_size, **changes)


def save_by_one(rank: int, world_size: int, root: str, owner: int) -> dict[str, Any]:
    """Save, with all tensors owned by one rank."""
    tensors = whole_state() if rank == owner else {}
    return save_as(open_storage(root), tensors, rank, world_size)


def save_on_a_full_disk(rank: int, world_size: int, root: str, full_rank: int) -> dict[str, Any]:
    """Save, with no room for more than 4 KiB in any file of one rank."""
    if rank == full_rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    tensors = {f"model/layers.{rank}.weight": torch.ones(10_000)}
    told = save_as(open_storage(root), tensors, rank, world_size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return told


def save_not_finite(rank: int, world_size: int, root: str, sick_rank: int) -> dict[str, Any]:
    """Save, with a NaN on one rank."""
    tensor = torch.ones(100)
    if rank == sick_rank:
        tensor[3] = torch.nan
    return save_as(open_storage(root), {f"model/layers.{rank}.w": tensor}, rank, world_size)


def save_with_a_bug(rank: int, world_size: int, root: str, buggy_rank: int) -> dict[str, Any]:
    """Save, with something unforeseen happening on one rank."""

    def before(operation: str, path: str) -> None:
        if operation == "chunk" and "rank-" in path:
            raise AssertionError("unforeseen")

    storage = open_storage(root)
    if rank == buggy_rank:
        storage = HauntedStorage(storage, before)
    return save_as(storage, {f"model/layers.{rank}.w": torch.ones(9)}, rank, world_size)


def save_until_killed(
    rank: int, world_size: int, root: str, memory: str, killed_rank: int, before_event: int
) -> dict[str, Any]:
    """Save as training does, in a thread and on two nodes that keep it in memory, with one rank
    dying ahead of its n-th operation on files below the root or that memory.
    """
    tensors = share_of(whole_state(), 1, rank, world_size)
    peers = Peers(None, rank, world_size)
    node = Path(memory) / str(rank)
    node.mkdir(parents=True)
    told: list[dict[str, Any]] = []
    saver = Saver(
        open_storage(root),
        Origin("r1", 1, {"ranks": world_size}, None),
        peers=peers,
        copies=Copies(node / "segments-g1", rank),
        memory=MemoryTier(node, peers, [str(each) for each in range(world_size)]),
        when_busy="wait",
        any_rank=lambda says: says,
        tell=lambda kind, **data: told.append({"kind": kind, "step": data["step"]}),
    )
    if rank == killed_rank:
        die_before(before_event, root.removeprefix("file://"), memory)
    try:
        saver.begin(20, tensors, {"step": 20} if rank == 0 else None)
        saver.finish()
    except RuntimeError as error:  # the other one died
        return {"error": str(error)}
    return {"because": saver.last.because if saver.last else None, "told": told}


def die_before(event_number: int, *below: str) -> None:
    """Leave this process at once ahead of its n-th file operation on a path below these folders."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir"}:
            return
        if any(str(arg).startswith(below) for arg in args[:2]):
            seen += 1
            if seen == event_number:
                os._exit(KILLED)

    sys.addaudithook(hook)


def run_ranks(
    folder: Path, function: Callable[..., Any], *args: Any, world_size: int, **kwargs: Any
) -> list[Any]:
    """Run `function(rank, world_size, ...)` on that many ranks; return what each told.

    None stands for a rank that died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        FORKS.Process(
            target=_rank, args=(folder, rank, world_size, function, args, kwargs), daemon=True
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 120
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"a rank of {function.__name__} did not end")
    told = [folder / f"told-{rank}.json" for rank in range(world_size)]
    return [json.loads(path.read_text()) if path.exists() else None for path in told]


def _rank(
    folder: Path,
    rank: int,
    world_size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if world_size > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=30),
        )
    told = function(rank, world_size, *args, **kwargs)
    (folder / f"told-{rank}.json").write_text(json.dumps(told))
    if world_size > 1:
        dist.destroy_process_group()
