"""One rank's part of a checkpoint: a file of tensors, as its bytes are to be.

Either the live tensors themselves (`of_tensors`), or a copy of them laid out in host memory exactly
as the file (`Copies`), which may be written while the tensors change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trainmaster.errors import UserError
from trainmaster.tensor_file import TensorSpan, encode_header
from worker import host_memory
from worker.checkpoint.segment import Segment
from worker.checkpoint.tensors import DTYPE_NAMES, Shard, as_shard, bytes_of


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank puts into a checkpoint.

    Attributes:
        shards: what is in the file, in its order.
        num_bytes: of the file; 0 where the rank has nothing to save.
        image: the whole file in host memory; None where it is still to be put together.
    """

    file: str
    header: bytes
    shards: dict[str, Shard]
    num_bytes: int
    image: memoryview | None = None

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes of the file, put together from the tensors."""
        yield memoryview(self.header)
        for shard in self.shards.values():
            yield bytes_of(shard.tensor)


@dataclass(frozen=True, slots=True)
class About:
    """Which rank's part of which checkpoint it is."""

    run: str
    generation: int
    step: int
    rank: int


def of_tensors(tensors: Mapping[str, torch.Tensor | Shard], about: About) -> Part:
    """Return the part that consists of these tensors.

    Raises:
        UserError: one is of a dtype that a checkpoint cannot hold.
    """
    part, _ = _laid_out(tensors, about)
    return part


def _laid_out(
    tensors: Mapping[str, torch.Tensor | Shard], about: About
) -> tuple[Part, Mapping[str, TensorSpan]]:
    shards = {name: as_shard(tensor) for name, tensor in tensors.items()}
    for name, shard in shards.items():
        if shard.tensor.dtype not in DTYPE_NAMES:
            raise UserError(f"{name!r} is {shard.tensor.dtype}, which a checkpoint cannot hold")
    header, spans = encode_header(
        [
            (name, DTYPE_NAMES[shard.tensor.dtype], tuple(shard.tensor.shape))
            for name, shard in shards.items()
        ],
        {
            "format": "pt",
            "run": about.run,
            "generation": str(about.generation),
            "step": str(about.step),
            "rank": str(about.rank),
        },
    )
    num_bytes = max((span.end for span in spans.values()), default=len(header)) if shards else 0
    part = Part(
        file=f"rank-{about.rank:05d}.safetensors",
        header=header,
        shards={name: shards[name] for name in spans},
        num_bytes=num_bytes,
    )
    return part, spans


class Copies:
    """The host memory of one rank: one segment, or two that are used in turn.

    With two the copy before stays whole while the next one is taken.

    Args:
        folder: where segments that outlive the rank are made; None for memory of its own. Where
            there is too little for that, it is given up.
        sharers: how many ranks of the node do the same.
    """

    def __init__(self, folder: Path | None, rank: int, *, sharers: int = 1) -> None:
        self._folder = folder
        self._rank = rank
        self._sharers = sharers
        self._number = 0
        self._segments: list[Segment] = []
        self.newest: Segment | None = None
        """The segment that was copied into last."""
        self.kept: Segment | None = None
        """One that must stay as it is until another takes its place."""

    @property
    def are_shared(self) -> bool:
        """Whether a copy can outlive the rank."""
        return self._folder is not None

    @property
    def num_bytes(self) -> int:
        """Host memory that is held."""
        return sum(segment.num_bytes for segment in self._segments)

    def prepare(self, tensors: Mapping[str, torch.Tensor | Shard], about: About) -> None:
        """Take and touch the memory that copies of these tensors will need.

        Raises:
            OSError: there is not enough.
        """
        part, _ = _laid_out(tensors, about)
        if self.are_shared and not host_memory.read().bears(2 * part.num_bytes * self._sharers):
            self.give_up_sharing()
        while part.num_bytes and len(self._segments) < 1 + self.are_shared:
            self._make(part.num_bytes).touch()

    def take(self, tensors: Mapping[str, torch.Tensor | Shard], about: About) -> Part:
        """Copy the tensors; the part that is returned does not change with them.

        This is what a step waits for. It is one pass over the bytes, into memory that is warm once
        `prepare` was called and the number of bytes has stayed.

        Raises:
            OSError: there is not enough memory.
        """
        part, spans = _laid_out(tensors, about)
        if part.num_bytes == 0:
            return part
        segment = self._next(part.num_bytes)
        segment.view[: len(part.header)] = part.header
        copied = {name: _copy(shard, segment, spans[name]) for name, shard in part.shards.items()}
        if any(shard.tensor.is_cuda for shard in part.shards.values()):
            torch.cuda.synchronize()
        self.newest = segment
        return replace(part, shards=copied, image=segment.view)

    def give_up_sharing(self) -> None:
        """From now on hold one segment, of memory that goes with this process."""
        for segment in self._segments:
            segment.discard()
        self._folder = self.kept = None
        self._segments = self._segments[:1] if self.newest is None else [self.newest]

    def discard(self) -> None:
        """Remove the files of all segments; what is linked elsewhere stays."""
        for segment in self._segments:
            segment.discard()

    def _next(self, num_bytes: int) -> Segment:
        free = [segment for segment in self._segments if segment is not self.kept]
        for segment in free:
            if segment.num_bytes == num_bytes:
                return segment
        for segment in free:  # of another size: the state has grown
            segment.discard()
            self._segments.remove(segment)
        return self._make(num_bytes)

    def _make(self, num_bytes: int) -> Segment:
        segment: Segment | None = None
        if self._folder is not None:
            self._number += 1
            try:
                segment = Segment(num_bytes, self._folder / f"rank-{self._rank:05d}.{self._number}")
            except OSError:
                self.give_up_sharing()
        if segment is None:
            segment = Segment(num_bytes)
        self._segments.append(segment)
        return segment


def _copy(shard: Shard, segment: Segment, span: TensorSpan) -> Shard:
    tensor = shard.tensor.detach()
    place_B = segment.tensor_B[span.start : span.end]
    target = place_B.view(tensor.dtype).view(tensor.shape)
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        # As fast as memory is, and other threads of this process go on meanwhile.
        ctypes.memmove(target.data_ptr(), tensor.data_ptr(), span.end - span.start)
    else:
        target.copy_(tensor, non_blocking=True)  # `take` waits for all of them at once
    return Shard(target, shard.global_offset, shard.global_shape)
