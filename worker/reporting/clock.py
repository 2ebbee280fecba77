"""How the clocks of a generation's nodes stand to each other: measured by messages there and back,
as NTP does.

Ranks of one node share its steady clock, so one of them asks for all. The best of some rounds
counts, the one with the shortest way there and back: half of that is by how much it may be wrong,
whatever the two ways took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist

from trainmaster.timeline import Clock

ROUNDS: Final = 8

Exchange = tuple[float, float, float]
"""(asked, answered, heard): the first and last on one's own clock, the second on the other's."""


def best(exchanges: Sequence[Exchange]) -> tuple[float, float]:
    """Return how far the other's clock is ahead, and by how much that may be wrong; seconds.

    Source: Mills, RFC 5905, section 8, for an answer that takes no time.
    """
    asked, answered, heard = min(exchanges, key=lambda each: each[2] - each[0])
    return answered - (asked + heard) / 2, (heard - asked) / 2


class Clocks:
    """The clocks of a generation. Every rank makes one, and all measure at the same steps.

    Args:
        nodes: of each rank its node; None for one that shares its clock with nobody.
    """

    def __init__(self, group: dist.ProcessGroup, nodes: Sequence[str | None], rank: int) -> None:
        self._group = group
        self._rank = rank
        self._askers = askers(nodes)
        self._first: tuple[float, float] | None = None

    def measure(self) -> Clock:
        """Return how this rank's clock stands to rank 0's; collective over all ranks."""
        found = torch.zeros(2, len(self._askers), dtype=torch.float64)
        for asker in sorted(set(self._askers) - {0}):
            if self._rank == asker:
                found[:, asker] = torch.tensor(best(self._ask()), dtype=torch.float64)
            elif self._rank == 0:
                self._answer(asker)
        dist.all_reduce(found, group=self._group)
        offset_s, error_s = found[:, self._askers[self._rank]].tolist()
        now = time.perf_counter()
        if self._first is None:
            self._first = now, offset_s
        since, before_s = self._first
        drift = (offset_s - before_s) / (now - since) if now > since else 0.0
        return Clock(offset_s, error_s, drift)

    def _ask(self) -> list[Exchange]:
        word = torch.zeros(1, dtype=torch.float64)
        exchanges = []
        for _ in range(ROUNDS):
            asked = time.perf_counter()
            dist.send(word, group_dst=0, group=self._group)
            dist.recv(word, group_src=0, group=self._group)
            exchanges.append((asked, word.item(), time.perf_counter()))
        return exchanges

    def _answer(self, asker: int) -> None:
        word = torch.zeros(1, dtype=torch.float64)
        for _ in range(ROUNDS):
            dist.recv(word, group_src=asker, group=self._group)
            word.fill_(time.perf_counter())
            dist.send(word, group_dst=asker, group=self._group)


def askers(nodes: Sequence[str | None]) -> list[int]:
    """Return for each rank who asks for it: the first rank of its node."""
    first: dict[str, int] = {}
    return [
        rank if node is None else first.setdefault(node, rank) for rank, node in enumerate(nodes)
    ]
