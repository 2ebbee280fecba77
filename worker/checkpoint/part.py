"""One rank's part of a checkpoint: a file of tensors, as its bytes are to be.

Either the live tensors themselves (`of_tensors`), or a copy of them laid out in host memory exactly
as the file (`Copies`), which may be written while the tensors change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainmaster.checkpoint.tensor_file import TensorSpan, encode_header
from trainmaster.errors import UserError
from worker import host_memory
from worker.checkpoint.segment import Segment
from worker.checkpoint.tensors import DTYPE_NAMES, Shard, as_shard, bytes_of
from worker.checkpoint.transfer import Arrival, FromHost, Transfer, at_once


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
class Copy:
    """One rank's part, copied into host memory or on its way there.

    Attributes:
        num_bytes: of the file; 0 where the rank has nothing to save.
        segment: where it lies; None where there is nothing.
    """

    file: str
    num_bytes: int
    segment: Segment | None = None
    header: bytes = b""
    spans: Mapping[str, TensorSpan] = field(default_factory=dict)
    places: Mapping[str, _Place] = field(default_factory=dict)
    arrive: Arrival = at_once

    def part(self) -> Part:
        """Wait until all has arrived; return what is to be written. A step does not wait for it."""
        self.arrive()
        if self.segment is None:
            return Part(self.file, self.header, {}, self.num_bytes)
        shards = {
            name: Shard(self.segment.at(self.spans[name].start, dtype, shape), offset, whole)
            for name, (dtype, shape, offset, whole) in self.places.items()
        }
        return Part(self.file, self.header, shards, self.num_bytes, self.segment.view)


_Place = tuple[torch.dtype, torch.Size, tuple[int, ...], tuple[int, ...]]
"""dtype, shape, and where it lies in the whole, of which shape: of a shard, without the tensor."""


@dataclass(frozen=True, slots=True)
class About:
    """Which rank's part of which checkpoint it is."""

    run: str
    generation: int
    step: int
    rank: int

    @property
    def file(self) -> str:
        """The name of the rank's file."""
        return f"rank-{self.rank:05d}.safetensors"


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
        file=about.file,
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
        transfer: how tensors get there; by default plainly.
    """

    def __init__(
        self,
        folder: Path | None,
        rank: int,
        *,
        sharers: int = 1,
        transfer: Transfer | None = None,
    ) -> None:
        self._transfer = transfer or FromHost()
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
            segment = self._make(part.num_bytes)
            segment.touch()
            self._transfer.lock(segment)

    def take(self, tensors: Mapping[str, torch.Tensor | Shard], about: About) -> Copy:
        """Copy the tensors; the copy that is returned does not change with them.

        This is what a step waits for. It is one pass over the bytes, into memory that is warm once
        `prepare` was called and the number of bytes has stayed; all else is left to `Copy.part`.

        Raises:
            OSError: there is not enough memory.
        """
        part, spans = _laid_out(tensors, about)
        if part.num_bytes == 0:
            return Copy(part.file, 0)
        segment = self._next(part.num_bytes)
        segment.view[: len(part.header)] = part.header
        places: dict[str, _Place] = {}
        with self._transfer.beginning():
            for name, shard in part.shards.items():
                tensor = shard.tensor.detach()
                self._transfer.copy(segment, spans[name].start, tensor)
                places[name] = tensor.dtype, tensor.shape, shard.global_offset, shard.global_shape
        self.newest = segment
        arrive = self._transfer.sent()
        return Copy(part.file, part.num_bytes, segment, part.header, spans, places, arrive)

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
