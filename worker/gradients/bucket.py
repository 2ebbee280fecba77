"""One bucket of gradients: its sums, and their way over the wire.

How replicas share (ZeRO) shows here alone:

- 0: the sums are all-reduced, and every replica updates all it holds.
- 1: the sums are all-reduced; each replica updates its rows and gives them to the others. The
  optimizer's state is shared out.
- 2: the sums are scattered, so that each replica gets those of its rows; the rest is given back
  until the next step begins.

In a step the sums of all micro-batches are whole on each replica in all three: scattering after
each micro-batch would send them once for each of them. ZeRO 3 does (`worker.model.sharded`): there
everything that arrives here is of this rank's rows, and summed over replicas.

Where sums are ordered (`determinism: layout`) they are not reduced on the way but gathered, and
every replica adds them up in the one order (`worker.gradients.ordered`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.carrier import Carrier, Trip
from worker.gradients.in_place import InPlaceSums
from worker.gradients.norms import Measured, OnDevice, measured
from worker.gradients.ordered import Covers, OrderedSums
from worker.gradients.sums import Sums, rounded_in_place
from worker.model.parameters import Held, Piece, num_bytes, part_of, piece_of
from worker.model.workload import layer_of


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the replicas share what they hold alike.

    Attributes:
        zero: 0 to 3.
        on_host: whether the optimizer and its state live in host memory.
        is_mixed: whether replicas are on different kinds of devices, which round differently: each
            updates a part and gives it to the others, whatever `zero` says.
        is_ordered: whether sums have the same bits however replicas share.
        reads_late: whether what is measured stays on the device.
        sum_dtype: in which gradients are summed.
    """

    zero: int
    num_replicas: int
    replica: int
    on_host: bool = False
    is_mixed: bool = False
    is_ordered: bool = False
    reads_late: bool = False
    sum_dtype: torch.dtype = torch.float64

    @property
    def parts(self) -> int:
        """Into how many parts the update of what a replica holds is divided."""
        return self.num_replicas if self.zero in {1, 2} or self.is_mixed else 1

    @property
    def part(self) -> int:
        """Which of them is this replica's."""
        return self.replica if self.parts > 1 else 0

    @property
    def sums(self) -> bool:
        """Whether the sums of micro-batches are still to be summed over replicas."""
        return self.num_replicas > 1 and self.zero < 3

    @property
    def scatters(self) -> bool:
        """Whether each replica receives the sums of its own rows only."""
        return self.zero == 2 and self.num_replicas > 1


class Bucket:
    """Some parameters of one segment and dtype."""

    def __init__(
        self,
        parameters: Sequence[Held],
        carrier: Carrier | None,
        ranks: tuple[int, ...],
        sharing: Sharing,
    ) -> None:
        self.parameters = parameters
        self.ranks = ranks
        self._carrier = carrier
        self._sharing = sharing
        self.sums = _sums(parameters, sharing)
        self._total: torch.Tensor | None = None
        self._cut: tuple[torch.Tensor | None, list[torch.Tensor]] = None, []
        """A total, and the gradients of the pieces in it."""
        self._covers: Covers = ()
        self._received: torch.Tensor | None = None
        self._gathered: torch.Tensor | None = None
        self._trip: Trip | None = None
        self._left, self._arrived = 0.0, 0.0
        self.has_left = False
        self.own: Measured | OnDevice = ([], 0)
        self.summed: Measured | OnDevice = ([], 0)
        self._about: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the number of parameters that are measured: their layers, and which of them count."""
        found = [
            piece_of(
                one,
                parts=sharing.parts,
                index=sharing.part,
                replica=sharing.replica,
                on_host=sharing.on_host,
            )
            for one in parameters
        ]
        self._piece_of = dict(zip([one.name for one in parameters], found, strict=True))
        self._part_elements = max(
            sum(part_of(one.local, sharing.parts, part).numel() for one in parameters)
            for part in range(sharing.parts)
        )

    @property
    def pieces(self) -> list[Piece]:
        """What this rank's optimizer updates of them."""
        return [piece for piece in self._piece_of.values() if piece is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes of the sums that go over the wire; nothing where this rank keeps them to itself."""
        if self._carrier is None:
            return 0
        return self.sums.num_elements * self.sums.dtype.itemsize * max(1, self._most_subtrees)

    @property
    def laps(self) -> float:
        """How often the sums go round the ring of replicas: a scatter once, an all-reduce twice.
        Where they are gathered, each replica's own go round.
        """
        if self._sharing.is_ordered:
            return float(self._sharing.num_replicas)
        return 1.0 if self._sharing.scatters else 2.0

    @property
    def _most_subtrees(self) -> int:
        return max(map(len, self._covers), default=0)

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of the parameters themselves."""
        return num_bytes(one.local for one in self.parameters)

    def open(self, covers: Covers) -> None:
        """Begin a step: nothing has been added up.

        Args:
            covers: of ordered sums, what subtrees each replica's micro-batches make.
        """
        self.has_left = False
        self._received = self._total = None
        self._covers = covers
        for one in self.parameters:
            one.parameter.grad = None
        for piece in self.pieces:
            piece.updated.grad = None
        self.sums.open()

    def send(self, factor: float, leaf: int) -> None:
        """Add what is left of micro-batch `leaf`, the last one; measure the sums times `factor` and
        send them to the other replicas.
        """
        self.sums.take_all()
        self.sums.end(leaf)
        self.has_left = True
        if isinstance(self.sums, OrderedSums) and self._carrier is not None:
            self.sums.scale(factor)
            self.own = self.summed = self._measured(self.sums.total())
            packed = self.sums.packed(self._most_subtrees)
            self._received = packed.new_empty(self._sharing.num_replicas, *packed.shape)
            self._start(self._carrier.all_gather(self._received.view(-1), packed.view(-1)))
            return
        total = self.sums.total()
        if factor != 1.0:
            total.mul_(factor)
        self.own = self.summed = self._measured(total)
        self._total = total
        if self._carrier is None:
            return
        if not self._sharing.scatters:
            self._start(self._carrier.all_reduce(total))
            return
        packed = self._packed(total)
        self._total = None
        self.sums.release()
        self._received = torch.empty_like(packed)
        # Gloo's own reduce-scatter is an all-reduce of which the rest is thrown away.
        self._start(self._carrier.all_to_all(self._received, packed))

    def _start(self, trip: Trip) -> None:
        self._trip = trip
        self._left, self._arrived = time.perf_counter(), 0.0
        trip.then(self._note_arrival)

    def _note_arrival(self, _: object) -> None:
        self._arrived = time.perf_counter()

    def receive(self) -> tuple[float, float]:
        """Wait for the sums over all replicas and measure them; return when this bucket left and
        when they arrived.
        """
        if self._carrier is None:
            return 0.0, 0.0
        assert self._trip is not None, "it has left"
        self._trip.wait()
        self._trip = None
        arrived = self._arrived or time.perf_counter()  # the note may come after the wait
        if isinstance(self.sums, OrderedSums):
            assert self._received is not None, "gathered"
            self._total, self._received = self.sums.complete(self._received, self._covers), None
            self.summed = self._measured(self._total)
        elif self._received is not None:
            first, *others = self._received.view(self._sharing.parts, -1).unbind()
            self._received = sum(others, first)
            mine = [one for one in self.parameters if self._piece_of[one.name] is not None]
            self.summed = self._measure(mine, self._own_parts(self._received))
        else:
            assert self._total is not None, "all-reduced in place"
            self.summed = self._measured(self._total)
        return self._left, arrived

    def publish(self, factor: float | torch.Tensor) -> None:
        """Make the sums times `factor` the gradients of the pieces."""
        dtype = self.parameters[0].local.dtype
        if self._received is not None:
            flat = self._own_parts(rounded_in_place(self._received, factor, dtype))
            gradients = [
                part.view_as(piece.updated) for piece, part in zip(self.pieces, flat, strict=True)
            ]
        else:
            assert self._total is not None, "the sums have arrived"
            rounded = rounded_in_place(self._total, factor, dtype)
            if self._cut[0] is not self._total:
                self._cut = self._total, self._parts_of_pieces(rounded)
            gradients = self._cut[1]
        for piece, gradient in zip(self.pieces, gradients, strict=True):
            piece.updated.grad = gradient.to(piece.updated.device)

    def _parts_of_pieces(self, rounded: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of the pieces among those of all parameters."""
        by_name = {
            one.name: part.view_as(one.local)
            for one, part in zip(self.parameters, self.sums.cut(rounded), strict=True)
        }
        parts, part = self._sharing.parts, self._sharing.part
        return [
            part_of(by_name[piece.name], parts, part).view_as(piece.updated)
            for piece in self.pieces
        ]

    def give(self) -> None:
        """Hand what this rank has updated to the parameters, and to the other replicas."""
        for piece in self.pieces:
            if self._sharing.on_host:
                piece.target.copy_(piece.updated.data)
        if self._sharing.parts == 1:
            return
        dtype = self.parameters[0].local.dtype
        device = self.parameters[0].local.device
        mine = torch.zeros(self._part_elements, dtype=dtype, device=device)
        for piece, flat in zip(self.pieces, self._own_parts(mine), strict=True):
            flat.copy_(piece.target.reshape(-1))
        self._gathered = mine.new_empty(self._sharing.parts * self._part_elements)
        assert self._carrier is not None, "there are other replicas"
        self._trip = self._carrier.all_gather(self._gathered, mine)

    def take(self) -> None:
        """Take over what the other replicas have updated."""
        assert self._trip is not None, "it was given"
        assert self._gathered is not None, "it was given"
        self._trip.wait()
        for part in range(self._sharing.parts):
            if part == self._sharing.part:
                continue
            offset = part * self._part_elements
            for one in self.parameters:
                target = part_of(one.local, self._sharing.parts, part)
                end = offset + target.numel()
                target.copy_(self._gathered[offset:end].view_as(target))
                offset = end
        self._trip = self._gathered = None

    def _measured(self, total: torch.Tensor) -> Measured | OnDevice:
        return self._measure(self.parameters, self.sums.cut(total))

    def _measure(
        self, parameters: Sequence[Held], values: Sequence[torch.Tensor]
    ) -> Measured | OnDevice:
        if not self._sharing.reads_late:
            return measured(parameters, values)
        device = self.parameters[0].local.device
        if len(parameters) not in self._about:
            layers = [layer_of(one.name) for one in parameters]
            counts = [float(one.counts) for one in parameters]
            self._about[len(parameters)] = (
                torch.tensor(layers, dtype=torch.int64, device=device),
                torch.tensor(counts, dtype=torch.float64, device=device),
            )
        layers_of, counts_of = self._about[len(parameters)]
        norms = torch.stack(torch._foreach_norm(list(values))) if values else counts_of
        squares = norms.double() ** 2
        bad = (~torch.isfinite(squares)).sum()
        # What does not count must not, even where it is not finite.
        return OnDevice(torch.where(counts_of > 0, squares, 0.0), layers_of, bad)

    def _own_parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Cut a buffer that holds this rank's parts one after the other."""
        sizes = [piece.target.numel() for piece in self.pieces]
        return list(flat[: sum(sizes)].split(sizes))

    def _packed(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sums ordered by the replica that they go to, each part equally long."""
        parts = self._sharing.parts
        packed = sums.new_zeros(parts * self._part_elements)
        views = [
            flat.view_as(one.local)
            for one, flat in zip(self.parameters, self.sums.cut(sums), strict=True)
        ]
        for part in range(parts):
            offset = part * self._part_elements
            for view in views:
                rows = part_of(view, parts, part)
                packed[offset : offset + rows.numel()] = rows.reshape(-1)
                offset += rows.numel()
        return packed


def _sums(parameters: Sequence[Held], sharing: Sharing) -> Sums:
    if sharing.is_ordered:
        return OrderedSums(parameters, sharing.sum_dtype)
    if sharing.sum_dtype is torch.float32 and InPlaceSums.fits(parameters):
        return InPlaceSums(parameters)
    return Sums(parameters, sharing.sum_dtype)
