"""How tensors travel among the ranks of a group: by the backend of their kind of device, or, where
kinds differ, through host memory on Gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from worker.devices import WIRE_DTYPE, Relay


class Trip:
    """A collective under way."""

    def __init__(self, work: dist.Work | None, land: Callable[[], None] | None = None) -> None:
        assert work is not None, "this rank is in the group"
        self._work = work
        self._land = land

    def then(self, note: Callable[[object], None]) -> None:
        """Have `note` called, in a thread of the backend's, when it has arrived."""
        self._work.get_future().then(note)

    def wait(self) -> None:
        """Wait until what was to be received is where it was to be."""
        self._work.wait()
        if self._land is not None:
            self._land()


@dataclass(frozen=True, slots=True)
class Carrier:
    """A group, and how its ranks reach each other.

    Attributes:
        crosses: whether its ranks are on devices of different kinds.
    """

    group: dist.ProcessGroup
    relay: Relay
    crosses: bool = False

    def all_reduce(self, sums: torch.Tensor) -> Trip:
        """Sum over all ranks, in place. Between kinds, in `WIRE_DTYPE`."""
        if not self.crosses:
            return Trip(dist.all_reduce(sums, group=self.group, async_op=True))
        host = self.relay.copy_of(sums, WIRE_DTYPE)
        work = dist.all_reduce(host, group=self.group, async_op=True)
        return Trip(work, lambda: _copy(host, sums))

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> Trip:
        """Send each rank its part of `sent`; between kinds, in `WIRE_DTYPE`."""
        if not self.crosses:
            work = dist.all_to_all_single(received, sent, group=self.group, async_op=True)
            return Trip(work)
        host = self.relay.copy_of(sent, WIRE_DTYPE)
        arrived = self.relay.room_for(received, WIRE_DTYPE)
        work = dist.all_to_all_single(arrived, host, group=self.group, async_op=True)
        return Trip(work, lambda: _copy(arrived, received))

    def all_gather(self, gathered: torch.Tensor, mine: torch.Tensor) -> Trip:
        """Give every rank all ranks' parts, one after the other; nothing is rounded."""
        if not self.crosses:
            return Trip(dist.all_gather_single(gathered, mine, group=self.group, async_op=True))
        host = self.relay.copy_of(mine)
        arrived = self.relay.room_for(gathered)
        work = dist.all_gather_single(arrived, host, group=self.group, async_op=True)
        return Trip(work, lambda: _copy(arrived, gathered))


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)
