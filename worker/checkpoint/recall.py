"""Finding a checkpoint in the memory of the nodes, all ranks together, before the store is asked.

A rank may need files that its own node does not hold: another layout, a node in the place of one
that was lost. They come from a node that holds them, over the checkpoint group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint import reshard
from trainmaster.checkpoint.manifest import MANIFEST_NAME, Manifest
from trainmaster.checkpoint.tiling import Box
from trainmaster.neighbours import ranks_by_node
from worker import host_memory
from worker.checkpoint.kept import files_in
from worker.checkpoint.peers import Peers
from worker.checkpoint.segment import Segment
from worker.checkpoint.tensors import Shard, as_shard


def recall(
    folder: Path,
    manifest_sha256: str,
    *,
    peers: Peers,
    nodes: Sequence[str],
    needed: Callable[[Manifest], Iterable[str]],
) -> bool:
    """Return whether the nodes hold the checkpoint together; then `folder` has all that this rank
    needs of it. A collective over all ranks.

    Args:
        folder: where it would lie in this node's memory.
        nodes: the node of each rank.
        needed: which of the manifest's files this rank reads.

    Raises:
        CheckpointWriteError: on all ranks, when one of the nodes has no memory for what it needs.
    """
    data = _manifest_in(folder, manifest_sha256)
    told = json.dumps({"has": data is not None, "files": files_in(folder) if data else []})
    held = [json.loads(each) for each in peers.collect(told.encode())]
    sources = [rank for rank, each in enumerate(held) if each["has"]]
    if not sources:
        return False
    data = peers.broadcast(data if peers.rank == sources[0] else None, sources[0])
    manifest = manifests.decode(data)
    if not manifest.files.keys() <= {name for each in held for name in each["files"]}:
        return False
    wanted = [set(json.loads(each)) for each in peers.collect(_names(needed(manifest)))]
    for name, sender, receiver in moves(manifest.files, nodes, [h["files"] for h in held], wanted):
        _move(folder / name, manifest.files[name].bytes, sender, receiver, peers)

    def settle() -> None:
        if not (folder / MANIFEST_NAME).exists() and peers.rank == min(
            rank for rank, node in enumerate(nodes) if node == nodes[peers.rank]
        ):
            (folder / MANIFEST_NAME).write_bytes(data)

    peers.agree("the checkpoint in memory cannot be used", settle)
    return True


def moves(
    files: Iterable[str],
    nodes: Sequence[str],
    held: Sequence[Sequence[str]],
    wanted: Sequence[set[str]],
) -> list[tuple[str, int, int]]:
    """Return (file, sending rank, receiving rank), in the order in which all carry them out.

    One rank receives for its node, from the first that holds the file. Pure.
    """
    found = []
    for name in sorted(files):
        senders = [rank for rank, names in enumerate(held) if name in names]
        for ranks in ranks_by_node(nodes).values():
            needs = any(name in wanted[rank] for rank in ranks)
            if needs and not any(name in held[rank] for rank in ranks):
                found.append((name, senders[0], ranks[0]))
    return found


def files_for(manifest: Manifest, tensors: Mapping[str, torch.Tensor | Shard]) -> set[str]:
    """Return the files that hold something of these tensors."""
    found = set()
    for name, tensor in tensors.items():
        entries = manifest.tensors.get(name, [])
        boxes = [Box(tuple(each.global_offset), tuple(each.shape)) for each in entries]
        found |= {entries[each.index].file for each in reshard.plan(as_shard(tensor).box, boxes)}
    return found


def _move(path: Path, num_bytes: int, sender: int, receiver: int, peers: Peers) -> None:
    def prepare() -> torch.Tensor | None:
        if peers.rank == sender:
            seen = path.stat().st_size
            if seen != num_bytes:
                raise OSError(f"{path.name} has {seen} bytes, not {num_bytes}")
            return torch.from_file(str(path), shared=False, size=seen, dtype=torch.uint8)
        if peers.rank != receiver:
            return None
        if not host_memory.read().bears(num_bytes):
            raise OSError(f"there is no room in memory for {path.name} of {num_bytes} bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        return Segment(num_bytes, path).tensor_B

    tensor = peers.agree(f"{path.name} cannot be moved", prepare)
    if peers.rank == sender:
        peers.exchange(tensor, receiver, {})
    elif peers.rank == receiver:
        assert tensor is not None, "room was made"
        peers.exchange(None, None, {sender: tensor})


def _manifest_in(folder: Path, manifest_sha256: str) -> bytes | None:
    with suppress(OSError):
        data = (folder / MANIFEST_NAME).read_bytes()
        return data if manifests.sha256(data) == manifest_sha256 else None
    return None


def _names(names: Iterable[str]) -> bytes:
    return json.dumps(sorted(names)).encode()
