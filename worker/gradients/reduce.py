"""Gradients of a rank, summed over micro-batches and replicas.

A micro-batch's gradients are float32, and their bits do not depend on the layout. Their sum is kept
in float64 until the update, unless float32 is asked for: in whatever order micro-batches and
replicas are added, the rounded result is the same but for about one value in 10^8. So a run's
losses do not drift apart between layouts, which float32 sums let them do within a hundred steps.
The price is twice the bytes on the wire, and four more per parameter in memory: a micro-batch's
gradients are added as they come, and not kept, but for those of the small parameters.

Parameters lie in buckets. During the last backward of a stage each bucket is sent off as soon as
its last gradient is there, while the backward goes on; what a schedule computes later (weights'
gradients of their own) is sent when it is done. Buckets of a segment leave in one fixed order on
all replicas.

DistributedDataParallel is not used: it averages with equal weights, which is wrong for unequal
shares, and its hooks miss weight gradients that some schedules compute later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch.utils.hooks import RemovableHandle

from trainmaster.emulation import Link
from trainmaster.layout import Stage
from worker.emulation import Departure, ring_s
from worker.gradients.bucket import Bucket, Sharing
from worker.gradients.norms import Measured, Norms, OnDevice, added, joined
from worker.gradients.ordered import Covers
from worker.gradients.sums import adding
from worker.groups import SegmentGroup
from worker.model.parameters import Held, Piece
from worker.model.workload import layer_of

__all__ = ["Gradients", "Norms", "Sharing", "Synchronisation"]


Flight = tuple[int, float, float, int]
"""(stage, left, arrived, bytes) of one bucket."""


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """What summing gradients over replicas took; nothing when there is one replica.

    Attributes:
        seconds: in which the rank had nothing else to do.
        num_bytes: of gradients.
        moved_bytes: that a ring moves per rank for it.
        hidden_s: in which gradients were under way while its pipeline still ran.
        flights: (stage, left, arrived, bytes) of each bucket, in order of departure.
    """

    seconds: float
    num_bytes: int
    moved_bytes: float = 0.0
    hidden_s: float = 0.0
    flights: tuple[Flight, ...] = ()

    @property
    def whole_s(self) -> float:
        """Seconds from the first bucket's departure to the last one's arrival, pauses left out."""
        return self.seconds + self.hidden_s


NOTHING: Final = Synchronisation(0.0, 0)


class _Leaving:
    """A stage whose last backward, of the micro-batch `leaf`, runs.

    Attributes:
        segments: its buckets, by segment.
        waiting: how many gradients each bucket still waits for.
        hooks: those that last as long as it does.
    """

    def __init__(self, segments: list[list[Bucket]], leaf: int) -> None:
        self.segments = segments
        self.leaf = leaf
        self.waiting = {bucket: len(bucket.parameters) for each in segments for bucket in each}
        self.hooks: list[RemovableHandle] = []

    def note(self, bucket: Bucket) -> None:
        """Note that one more gradient of a bucket is there."""
        self.waiting[bucket] -= 1


class Gradients:
    """The gradients of all parameters of a rank, in buckets of at most `bucket_bytes` (or one
    parameter) on the wire, segment by segment.

    Parameters fill buckets from the last to the first: a backward finishes them in that order.
    """

    def __init__(
        self,
        parameters: Sequence[Held],
        stages: Sequence[Stage],
        segments: Sequence[SegmentGroup],
        *,
        bucket_bytes: int,
        sharing: Sharing,
        links: Mapping[int, Link],
        holds: bool = False,
    ) -> None:
        """Args:
        links: emulated links to other ranks, by rank.
        holds: whether buckets wait for an emulated device to have computed them (`taking`).
        """
        self._sharing = sharing
        self._links = links
        self._holds = holds
        self._layers = {stage.index: (stage.first_layer, stage.end_layer) for stage in stages}
        self._factor = 1.0
        self._first_leaf = 0
        self._armed: dict[int, _Leaving] = {}
        """By stage: its last backward runs."""
        self._stages: dict[int, list[list[Bucket]]] = {stage.index: [] for stage in stages}
        for each in reversed(segments):
            first, end = each.segment.first_layer, each.segment.end_layer
            mine = [one for one in parameters if first <= layer_of(one.name) < end]
            [stage] = [s for s in stages if s.first_layer <= first < s.end_layer]
            buckets = [
                Bucket(run, each.carrier if sharing.sums else None, each.segment.ranks, sharing)
                for run in partition(mine, bucket_bytes, sharing.sum_dtype)
            ]
            self._stages[stage.index].append(buckets)
            for bucket in buckets:
                for index in bucket.sums.alone:
                    taken = self._taken(stage.index, bucket, index)
                    bucket.parameters[index].parameter.register_post_accumulate_grad_hook(taken)
        self._stage_of = {
            bucket: stage
            for stage, segments_ in self._stages.items()
            for buckets in segments_
            for bucket in buckets
        }
        self._left: list[Bucket] = []
        """In order of departure."""

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets, those of the last stage first."""
        return [
            bucket
            for stage in sorted(self._stages, reverse=True)
            for segment in self._stages[stage]
            for bucket in segment
        ]

    @property
    def pieces(self) -> list[Piece]:
        """What the optimizer of this rank updates."""
        return [piece for bucket in self.buckets for piece in bucket.pieces]

    def begin(self, factor: float = 1.0, covers: Covers = ()) -> None:
        """Begin a new step, whose sums are to be multiplied by `factor`.

        Args:
            covers: of ordered sums, what subtrees each replica's micro-batches make.
        """
        self._factor = factor
        self._left = []
        for bucket in self.buckets:
            bucket.open(covers)

    def begin_pass(self, first_leaf: int) -> None:
        """Begin a pass, of whose micro-batches this rank's first is the step's `first_leaf`-th."""
        self._first_leaf = first_leaf

    @contextmanager
    def taking(
        self, stage: int, micro_batch: int, *, is_last: bool
    ) -> Iterator[Sequence[Departure]]:
        """Add up what the body, a backward of a micro-batch, leaves in the gradients of a stage.
        Where buckets are held, what is yielded tells in the end when in it each is to leave.

        Args:
            is_last: whether it is the stage's last one of this step: each bucket leaves as soon as
                it is full.
        """
        leaf = self._first_leaf + micro_batch
        with adding():
            if is_last:
                departures: list[Departure] = []
                self._arm(stage, leaf)
                yield departures
                departures += self._close(stage)
                return
            yield ()
            for segment in self._stages[stage]:
                for bucket in segment:
                    bucket.sums.take_all()
                    bucket.sums.end(leaf)

    def _taken(self, stage: int, bucket: Bucket, index: int) -> Callable[[torch.Tensor], None]:
        """Return what is called when a backward has a gradient: it is added up at once."""

        def taken(parameter: torch.Tensor) -> None:
            bucket.sums.take(index)
            leaving = self._armed.get(stage)
            if leaving is not None and not self._holds:
                leaving.note(bucket)
                self._send_full(leaving, bucket)

        return taken

    def _seen(self, leaving: _Leaving, bucket: Bucket) -> Callable[[torch.Tensor], None]:
        """Return what is called when the last backward has a gradient that is added up later."""

        def seen(parameter: torch.Tensor) -> None:
            leaving.note(bucket)
            self._send_full(leaving, bucket)

        return seen

    def _send_full(self, leaving: _Leaving, bucket: Bucket) -> None:
        [segment] = [each for each in leaving.segments if bucket in each]
        for each in segment:
            if leaving.waiting[each] > 0:
                break
            if not each.has_left:
                self._send(each, leaving.leaf)

    def _arm(self, stage: int, leaf: int) -> None:
        """Have each bucket of a stage sent off as soon as it is full. The last one is so when the
        backward ends.
        """
        leaving = _Leaving(self._stages[stage], leaf)
        self._armed[stage] = leaving
        if self._holds or not self._sharing.sums:
            return
        for bucket in list(leaving.waiting)[:-1]:
            seen = self._seen(leaving, bucket)
            leaving.hooks += [
                one.parameter.register_post_accumulate_grad_hook(seen)
                for index, one in enumerate(bucket.parameters)
                if index not in bucket.sums.alone
            ]

    def _close(self, stage: int) -> Iterator[Departure]:
        """Send off what is left of a stage: its last gradient is there. What is held is taken, and
        yielded with when it is to leave.
        """
        leaving = self._armed.pop(stage)
        for hook in leaving.hooks:
            hook.remove()
        first, end = self._layers[stage]
        for bucket in leaving.waiting:
            if bucket.has_left:
                continue
            if self._holds:
                bucket.sums.take_all()
                lowest = min(layer_of(one.name) for one in bucket.parameters)
                yield (end - lowest) / (end - first), partial(self._send, bucket, leaving.leaf)
            else:
                self._send(bucket, leaving.leaf)

    def _send(self, bucket: Bucket, leaf: int) -> None:
        bucket.send(self._factor, leaf)
        self._left.append(bucket)

    def finish(self) -> Synchronisation:
        """Wait until all sums over replicas are there; the replicas hold the same bits then."""
        assert len(self._left) == len(self.buckets), "a stage was not closed"
        if not self._sharing.sums:
            for bucket in self._left:
                bucket.receive()
            return NOTHING
        began = time.perf_counter()
        free = 0.0
        spans = []
        for bucket in self._left:
            left, arrived = bucket.receive()
            delay_s = ring_s(self._links_of(bucket), self._sharing.num_replicas, bucket.num_bytes)
            free = max(arrived, free) + delay_s * bucket.laps / 2
            spans.append((left, free))
        if free > time.perf_counter():
            time.sleep(max(0.0, free - time.perf_counter()))
        seconds = time.perf_counter() - began
        hidden = covered_s([(left, min(end, began)) for left, end in spans])
        num_bytes = sum(bucket.num_bytes for bucket in self._left)
        once = 1 - 1 / self._sharing.num_replicas
        moved = sum(bucket.laps * once * bucket.num_bytes for bucket in self._left)
        flights = tuple(
            (self._stage_of[bucket], left, arrived, bucket.num_bytes)
            for bucket, (left, arrived) in zip(self._left, spans, strict=True)
        )
        return Synchronisation(seconds, num_bytes, moved, hidden, flights)

    def _links_of(self, bucket: Bucket) -> dict[int, Link]:
        return {rank: self._links[rank] for rank in bucket.ranks if rank in self._links}

    def own_norms(self) -> Norms:
        """Return the norms of this replica's sums, as they were before they left."""
        return added(each for each in self._own() if not isinstance(each, OnDevice))

    def summed_norms(self) -> Norms:
        """Return the norms of the sums over all replicas, or of this rank's part of them."""
        summed = (bucket.summed for bucket in self.buckets)
        return added(each for each in summed if not isinstance(each, OnDevice))

    def _own(self) -> list[Measured | OnDevice]:
        return [bucket.own for bucket in self.buckets]

    def own_on_device(self) -> OnDevice:
        """As `own_norms`, where what is measured stays on the device."""
        return joined([each for each in self._own() if isinstance(each, OnDevice)])

    def summed_on_device(self) -> OnDevice:
        """As `summed_norms`, where what is measured stays on the device."""
        summed = [bucket.summed for bucket in self.buckets]
        return joined([each for each in summed if isinstance(each, OnDevice)])

    def publish(self, factor: float | torch.Tensor) -> None:
        """Make the sums times `factor` the gradients of the pieces, for the optimizer to apply."""
        for bucket in self.buckets:
            bucket.publish(factor)

    def share(self) -> None:
        """Make what every replica has updated everybody's."""
        if self._sharing.parts == 1 and not self._sharing.on_host:
            return
        for bucket in self.buckets:
            bucket.give()
        if self._sharing.parts == 1:
            return
        for bucket in self.buckets:
            bucket.take()
        num_replicas = self._sharing.num_replicas
        delay_s = sum(
            ring_s(self._links_of(bucket), num_replicas, bucket.num_weight_bytes) / 2
            for bucket in self.buckets
        )
        if delay_s > 0:
            time.sleep(delay_s)

    def refresh(self) -> None:
        """Take the weights anew from the parameters, after somebody else has filled them."""
        for piece in self.pieces:
            if piece.updated.data_ptr() != piece.target.data_ptr():
                piece.updated.data.copy_(piece.target)


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds that lie in at least one of the spans (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def partition(
    parameters: Sequence[Held], bucket_bytes: int, sum_dtype: torch.dtype = torch.float64
) -> list[list[Held]]:
    """Cut the parameters, last first, into runs of one dtype whose sums take at most
    `bucket_bytes`; a larger parameter is a run of its own.
    """
    runs: list[list[Held]] = []
    used = 0
    for one in reversed(parameters):
        size = one.local.numel() * sum_dtype.itemsize
        if not runs or used + size > bucket_bytes or runs[-1][0].local.dtype != one.local.dtype:
            runs.append([])
            used = 0
        runs[-1].append(one)
        used += size
    return runs
