"""The memory tier: the newest state of a run, kept whole in the memory of its nodes.

Each node has one folder per run in a file system that lives in memory. It belongs to the agent, and
so it is there when the ranks are not. In it lie, by the rules of every checkpoint, the files of the
node's own ranks, copies of those of the node before it, `state.json`, and `manifest.json` last. Who
restores verifies them like any others.

Crash: a folder without a manifest is nothing; the one before it stays until all ranks of all nodes
have said that the new one is whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainmaster.checkpoint.manifest import MANIFEST_NAME, STATE_NAME
from trainmaster.ids import checkpoint_folder
from trainmaster.neighbours import receivers
from worker import host_memory
from worker.checkpoint.kept import drop
from worker.checkpoint.part import Copy
from worker.checkpoint.peers import Peers
from worker.checkpoint.segment import Segment
from worker.checkpoint.writer import Saved


class MemoryTier:
    """Keeps what was saved last. `keep` is a collective over all ranks.

    Args:
        folder: the run's folder in this node's memory.
        nodes: the node of each rank.
    """

    def __init__(self, folder: Path, peers: Peers, nodes: Sequence[str]) -> None:
        self._folder = folder
        self._peers = peers
        self._receivers = receivers(nodes)

    @property
    def has_copies(self) -> bool:
        """Whether each part is on a second node too."""
        return any(each is not None for each in self._receivers)

    def keep(self, saved: Saved, copy: Copy) -> None:
        """Keep what `saved` tells of, of which this rank has `copy`, in place of what was kept
        before.

        Raises:
            CheckpointWriteError: on all ranks, when there is too little memory on one of the nodes.
        """
        name = checkpoint_folder(saved.manifest.generation, saved.manifest.step)
        failed = f"{name} was not kept in memory"
        here = self._folder / name
        state = self._peers.broadcast(saved.state)
        sizes = self._peers.numbers(copy.num_bytes)

        def prepare() -> dict[int, Segment]:
            here.mkdir(parents=True, exist_ok=True)
            if copy.segment is not None:
                if copy.segment.path is None:
                    raise OSError("there was no room for a second copy of this rank's part")
                _link(copy.segment.path, here / copy.file)
            _write(here / STATE_NAME, state)
            return self._take_copies(here, sizes)

        others = self._peers.agree(failed, prepare)
        self._peers.exchange(
            None if copy.segment is None else copy.segment.tensor_B,
            None if copy.segment is None else self._receivers[self._peers.rank],
            {sender: segment.tensor_B for sender, segment in others.items()},
        )
        self._peers.agree(failed, lambda: _write(here / MANIFEST_NAME, saved.encoded))
        drop(self._folder, but=name)

    def forget(self) -> None:
        """Remove what this node keeps of the run."""
        drop(self._folder)

    def _take_copies(self, here: Path, sizes: Sequence[int]) -> dict[int, Segment]:
        senders = [
            sender
            for sender, receiver in enumerate(self._receivers)
            if receiver == self._peers.rank and sizes[sender]
        ]
        needed = sum(sizes[sender] for sender in senders)
        memory = host_memory.read()
        if not memory.bears(needed):
            raise OSError(
                f"{memory.available >> 20} MiB of {memory.total >> 20} are free, and "
                f"{host_memory.RESERVE_RATIO:.0%} stay so"
            )
        copies = {}
        for sender in senders:
            path = here / f"rank-{sender:05d}.safetensors"
            path.unlink(missing_ok=True)
            copies[sender] = Segment(sizes[sender], path)
        return copies


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    os.link(source, target)


def _write(path: Path, data: bytes) -> None:
    """Write a small file whole or not at all; the ranks of a node write the same."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
