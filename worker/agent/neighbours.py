"""What this node sees of its neighbours on its own, so that a node which the control plane does not
hear any more can be told from one that is gone.

A neighbour is tried by a TCP connection to its agent. While this node itself cannot reach the
control plane, it says in the checkpoint store that it lives, and its neighbours read it there.
"""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final

from trainmaster.errors import TrainmasterError
from trainmaster.wire import Assignment, Reach
from worker.storage import open_storage

EVERY_S: Final = 2.0
CONNECT_S: Final = 1.5
TOLD_EVERY_S: Final = 3.0
"""What has not changed is told again so often."""
AT_MOST: Final = 2
"""Neighbours that one node tries for each generation: those after it in the ring of names."""
FOLDER: Final = "heartbeats"

_Key = tuple[str, str]
"""Run's checkpoint root and node."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look gave; `stored` is what the store says of a neighbour that does not answer."""

    answers: bool
    refused: bool
    stored: bytes | None


class Neighbours:
    """Tries neighbours, each every `EVERY_S`, in a thread of its own.

    Args:
        executor: where connections and stores are waited for; one thread is enough.
        wake: called from that thread when something was seen.
    """

    def __init__(self, node: str, *, executor: Executor, wake: Callable[[], None]) -> None:
        self._node = node
        self._executor = executor
        self._wake = wake
        self._due = 0.0
        self._flight: Future[dict[str, _Seen]] | None = None
        self._reaches: dict[str, Reach] = {}
        self._stored: dict[str, bytes] = {}
        self._told: dict[str, tuple[Reach, float]] = {}
        self._beats = itertools.count(1)

    def look(self, assignments: Iterable[Assignment], now: float, *, cut_off: bool) -> None:
        """Take in what was seen, and begin the next look when it is due.

        Args:
            cut_off: the control plane does not answer this node.
        """
        if self._flight is not None and self._flight.done():
            flight, self._flight = self._flight, None
            for node, seen in flight.result().items():
                self._take(node, seen)
        if self._flight is not None or now < self._due:
            return
        self._due = now + EVERY_S
        addresses: dict[str, tuple[str, str]] = {}
        roots: set[str] = set()
        for each in assignments:
            if each.neighbours:
                roots.add(each.checkpoint_root)
            for node in ring_after(self._node, each.neighbours)[:AT_MOST]:
                addresses[node] = each.neighbours[node], each.checkpoint_root
        for gone in self._reaches.keys() - addresses.keys():
            del self._reaches[gone]
        if addresses:
            beat = next(self._beats) if cut_off else None
            self._flight = self._executor.submit(_look, self._node, addresses, roots, beat)
            self._flight.add_done_callback(lambda _: self._wake())

    def news(self, now: float) -> dict[str, Reach]:
        """Return what is to be told now: what has changed, and now and then what has not."""
        told = {}
        for node, reach in self._reaches.items():
            before, at = self._told.get(node, (None, 0.0))
            if reach != before or now - at >= TOLD_EVERY_S:
                told[node] = reach
                self._told[node] = reach, now
        return told

    def _take(self, node: str, seen: _Seen) -> None:
        before = self._reaches.get(node, Reach(answers=False))
        moved = seen.stored is not None and seen.stored != self._stored.get(node, seen.stored)
        if seen.stored is not None:
            self._stored[node] = seen.stored
        self._reaches[node] = Reach(
            answers=seen.answers,
            refused=seen.refused,
            failures=0 if seen.answers else before.failures + 1,
            ever=before.ever or seen.answers,
            stored=moved,
        )


def ring_after(node: str, others: Iterable[str]) -> list[str]:
    """Return the other nodes in the order of their names, beginning after `node`."""
    ordered = sorted(others)
    return [each for each in ordered if each > node] + [each for each in ordered if each < node]


def _look(
    own: str, addresses: dict[str, tuple[str, str]], roots: set[str], beat: int | None
) -> dict[str, _Seen]:
    if beat is not None:
        for root in sorted(roots):
            _say(root, own, beat)
    seen = {}
    for node, (address, root) in addresses.items():
        found = try_to_reach(address)
        seen[node] = found if found.answers else replace(found, stored=_said(root, node))
    return seen


def try_to_reach(address: str) -> _Seen:
    """Connect to host:port once; returns within `CONNECT_S`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            return _Seen(answers=True, refused=False, stored=None)
    except OSError as error:
        return _Seen(answers=False, refused=error.errno == errno.ECONNREFUSED, stored=None)


def _say(root: str, node: str, beat: int) -> None:
    try:
        open_storage(root).put(f"{FOLDER}/{node}", [str(beat).encode()])
    except (OSError, TrainmasterError):
        return  # a store that cannot be written to is a witness less


def _said(root: str, node: str) -> bytes | None:
    try:
        return open_storage(root).read(f"{FOLDER}/{node}", 0, 64)
    except (OSError, TrainmasterError):
        return None
