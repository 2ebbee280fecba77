"""Agreement among the ranks that save together: all go on, or all raise the same.

Only JSON bytes travel, never pickles. Runs on the CPU, over a Gloo group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist

from trainmaster.errors import ConflictError, TrainmasterError, UnavailableError

T = TypeVar("T")
_MAX_MESSAGE_CHARS = 500


class CheckpointWriteError(UnavailableError):
    """A checkpoint could not be written. Nothing was committed; the next one may succeed."""

    code = "checkpoint_write"


class NonFiniteStateError(TrainmasterError):
    """The state holds NaN or infinity. It is not committed: nobody could resume from it."""

    code = "non_finite_state"


_KINDS: tuple[tuple[str, type[BaseException], type[TrainmasterError]], ...] = (
    ("non_finite", NonFiniteStateError, NonFiniteStateError),
    ("conflict", ConflictError, ConflictError),
    ("unavailable", UnavailableError, CheckpointWriteError),
    ("unavailable", OSError, CheckpointWriteError),
)


class Peers:
    """The ranks of one group. Every method is a collective that all call in the same order.

    Args:
        group: a Gloo group of all ranks; None is the default one, or none where one rank is all.
    """

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world_size: int) -> None:
        self._group = group
        self.rank = rank
        self._world_size = world_size

    def agree(self, what: str, action: Callable[[], T]) -> T:
        """Run `action` on every rank and return its result here once all have succeeded.

        Args:
            what: begins the message of the error, such as "checkpoint g1-step60 was not written".

        Raises:
            NonFiniteStateError, ConflictError, CheckpointWriteError: on all ranks alike, when one
                of them failed so; the first of these kinds wins. OSError becomes the last.
            RuntimeError: on the others, when one failed in a way that is nobody's plan; that one
                raises its own error.
        """
        result: T | None = None
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
        kind = _kind(failure)
        told = [kind, "" if failure is None else _told(failure)]
        outcomes = [json.loads(data) for data in self.collect(json.dumps(told).encode())]
        if all(other is None for other, _ in outcomes):
            return result  # type: ignore[return-value]  # ours succeeded: it is a T
        if kind == "unexpected":
            assert failure is not None
            raise failure
        kinds = [other for other, _ in outcomes]
        message = f"{what}: " + "; ".join(
            f"rank {rank}: {text}" for rank, (other, text) in enumerate(outcomes) if other
        )
        if "unexpected" in kinds:
            raise RuntimeError(message) from failure
        raise next(ours for name, _, ours in _KINDS if name in kinds)(message) from failure

    def gather(self, data: bytes) -> list[bytes]:
        """Return what each rank gave, on rank 0; nothing on the others."""
        if self._world_size == 1:
            return [data]
        sizes = self._sizes(data)
        mine = _padded(data, max(sizes))
        parts = [torch.empty_like(mine) for _ in sizes] if self.rank == 0 else None
        dist.gather(mine, parts, group=self._group, group_dst=0)
        return [_cut(part, size) for part, size in zip(parts or [], sizes, strict=False)]

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """Return on every rank what the rank `source` gave."""
        if self._world_size == 1:
            assert data is not None, "the source gives the data"
            return data
        size = self._sizes(data or b"")[source]
        buffer = _padded(data or b"", size)
        dist.broadcast(buffer, group=self._group, group_src=source)
        return _cut(buffer, size)

    def numbers(self, number: int) -> list[int]:
        """Return what each rank gave, on every rank."""
        return [int(data) for data in self.collect(str(number).encode())]

    def exchange(
        self,
        mine: torch.Tensor | None,
        receiver: int | None,
        theirs: Mapping[int, torch.Tensor],
    ) -> None:
        """Send a tensor to `receiver`, if there is one, and fill those of `theirs` by what their
        ranks send; sizes are agreed on before.
        """
        works = [
            dist.irecv(tensor, group=self._group, group_src=sender)
            for sender, tensor in sorted(theirs.items())
        ]
        if receiver is not None:
            assert mine is not None, "who sends has something"
            works.append(dist.isend(mine, group=self._group, group_dst=receiver))
        for work in works:
            assert work is not None, "every rank is in the group"
            work.wait()

    def collect(self, data: bytes) -> list[bytes]:
        """Return what each rank gave, on every rank."""
        if self._world_size == 1:
            return [data]
        sizes = self._sizes(data)
        mine = _padded(data, max(sizes))
        parts = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(parts, mine, group=self._group)
        return [_cut(part, size) for part, size in zip(parts, sizes, strict=True)]

    def _sizes(self, data: bytes) -> list[int]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world_size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self._group)
        return [int(size) for size in sizes]


def _kind(failure: Exception | None) -> str | None:
    if failure is None:
        return None
    return next((name for name, theirs, _ in _KINDS if isinstance(failure, theirs)), "unexpected")


def _told(failure: Exception) -> str:
    if isinstance(failure, TrainmasterError):
        return failure.message[:_MAX_MESSAGE_CHARS]
    return f"{type(failure).__name__}: {failure}"[:_MAX_MESSAGE_CHARS]


def _padded(data: bytes, size: int) -> torch.Tensor:
    size = max(1, size)  # torch makes no tensor of nothing
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def _cut(part: torch.Tensor, size: int) -> bytes:
    return part[:size].numpy().tobytes()
