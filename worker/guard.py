"""The one truth per step: what all ranks contribute to, and read the same decision from.

Each rank fills a vector of float64; its sum over all ranks is the step's status. Whatever must not
be added up has a slot of its own: gradient squares per layer (each layer counted by one owner, so
that the sum runs in the same order in every layout), non-finite counts per rank, spans and norms
per replica. Only rank 0 fills in an order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainmaster.layout import RankRole
from trainmaster.orders import OrderWord
from trainmaster.plan import Plan
from worker.gradients.norms import Norms
from worker.tree import add_up

Told = tuple[OrderWord, int]
"""An order as rank 0 tells it: (word, seq)."""
NO_ORDER: Told = (OrderWord.NONE, 0)
Loss = tuple[float, float]
"""(sum, weight)."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one rank saw of a step.

    Attributes:
        losses: of its replica's micro-batches, by their number in the step; on the last stage.
        own: its gradients before they were summed over replicas.
        summed: its gradients after; with zero 2, its rows of them.
        span_s: the duration of its whole pass.
    """

    losses: Mapping[int, Loss]
    own: Norms
    summed: Norms
    span_s: float
    order: Told = NO_ORDER


@dataclass(frozen=True, slots=True)
class Status:
    """What every rank knows about a step once it is shared.

    Attributes:
        weight: what loss and gradients are divided by: tokens or samples of all replicas.
        grad_norm: of the mean gradient, before clipping; not finite when the gradient is not.
        replica_norms: of each replica's own gradient sum over its stages, undivided.
        non_finite: single values that are not finite, by rank.
        spans_s: how long each replica's pipeline took, from first forward to last backward.
    """

    loss: float
    weight: float
    grad_norm: float
    replica_norms: tuple[float, ...]
    non_finite: tuple[int, ...]
    spans_s: tuple[float, ...]
    order: Told

    @property
    def overflowed(self) -> bool:
        """Whether gradients are not finite while the loss is."""
        return math.isfinite(self.loss) and (
            any(self.non_finite) or not math.isfinite(self.grad_norm)
        )

    @property
    def because(self) -> str | None:
        """Why the update must not be applied, or None."""
        ranks = [rank for rank, count in enumerate(self.non_finite) if count]
        if ranks:
            where = ", ".join(str(rank) for rank in ranks)
            return f"{sum(self.non_finite)} gradient or loss values on rank {where} were not finite"
        if self.weight <= 0:
            return "the batch has no weight: nothing in it counts for the loss"
        if not (math.isfinite(self.grad_norm) and math.isfinite(self.loss)):
            return "finite gradients of the replicas add up to one that is not finite"
        return None


class StatusVector:
    """The layout of the status vector of one plan.

    Args:
        is_ordered: whether losses and weights are added up in the order of micro-batches, whatever
            the layout; each has a slot of its own then.
    """

    def __init__(self, plan: Plan, *, is_ordered: bool = False) -> None:
        self._num_losses = plan.micro_batches * plan.sync_every if is_ordered else 1
        self._num_layers, self._num_replicas, self._num_ranks = (
            plan.num_layers,
            plan.replicas,
            plan.world_size,
        )
        self._shares_sums = plan.zero >= 2

    @property
    def losses(self) -> slice:
        """Where the sums of losses stand."""
        return slice(2, 2 + self._num_losses)

    @property
    def weights(self) -> slice:
        """Where the weights stand."""
        return _after(self.losses, self._num_losses)

    @property
    def layers(self) -> slice:
        """Where the squares of the summed gradients stand, by layer."""
        return _after(self.weights, self._num_layers)

    @property
    def replicas(self) -> slice:
        """Where the squares of each replica's own gradients stand."""
        return _after(self.layers, self._num_replicas)

    @property
    def non_finite(self) -> slice:
        """Where the ranks' counts of what is not finite stand."""
        return _after(_after(self.replicas, self._num_replicas), self._num_ranks)

    def speaks_for_sums(self, role: RankRole) -> bool:
        """Return whether a rank tells the squares of the summed gradients that it holds."""
        return role.replica == 0 or self._shares_sums

    def encode(self, seen: Contribution, role: RankRole) -> list[float]:
        """Return this rank's vector."""
        layers = [0.0] * self._num_layers
        speaks = role.tensor == 0  # the other ranks of its place have seen the same losses
        if self.speaks_for_sums(role):
            for layer, square in seen.summed.squares.items():
                layers[layer] = square
        replicas, spans = [0.0] * self._num_replicas, [0.0] * self._num_replicas
        replicas[role.replica] = sum(seen.own.squares.values())
        if role.is_first_stage and speaks:
            spans[role.replica] = seen.span_s
        non_finite = [0.0] * self._num_ranks
        loss_sums, weights = [0.0] * self._num_losses, [0.0] * self._num_losses
        for number, (loss_sum, weight) in seen.losses.items():
            loss_sums[min(number, self._num_losses - 1)] += loss_sum
            weights[min(number, self._num_losses - 1)] += weight
        non_finite[role.rank] = seen.own.num_non_finite + (not math.isfinite(sum(loss_sums)))
        word, seq = seen.order
        return [
            float(word),
            float(seq),
            *(loss_sums if speaks else [0.0] * self._num_losses),
            *(weights if speaks else [0.0] * self._num_losses),
            *layers,
            *replicas,
            *spans,
            *non_finite,
        ]

    def decode(self, total: Sequence[float]) -> Status:
        """Read the sum of all ranks' vectors."""
        word, seq, *rest = total
        loss_sums, rest = rest[: self._num_losses], rest[self._num_losses :]
        weights, rest = rest[: self._num_losses], rest[self._num_losses :]
        loss_sum, weight = _added(loss_sums), _added(weights)
        layers, rest = rest[: self._num_layers], rest[self._num_layers :]
        replicas, rest = rest[: self._num_replicas], rest[self._num_replicas :]
        spans, non_finite = rest[: self._num_replicas], rest[self._num_replicas :]
        assert len(non_finite) == self._num_ranks, "the vector has the layout of another plan"
        square = _added(layers)
        divisor = weight if weight > 0 else math.nan
        return Status(
            loss=loss_sum / divisor,
            weight=weight,
            grad_norm=math.sqrt(square) / divisor,
            replica_norms=tuple(math.sqrt(each) for each in replicas),
            non_finite=tuple(int(count) for count in non_finite),
            spans_s=tuple(spans),
            order=(OrderWord(int(word)), int(seq)),
        )


def _after(before: slice, size: int) -> slice:
    return slice(before.stop, before.stop + size)


def _added(values: Sequence[float]) -> float:
    """Add up from left to right; `sum` is more exact from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def share(vector: Sequence[float], group: dist.ProcessGroup) -> list[float]:
    """Return the sum of all ranks' vectors, the same on each."""
    total = torch.tensor(vector, dtype=torch.float64)
    add_up(total, group)
    return total.tolist()


def share_order(order: Told, group: dist.ProcessGroup) -> Told:
    """Return rank 0's order on all ranks; the others pass `NO_ORDER`."""
    word, seq = share([float(order[0]), float(order[1])], group)
    return OrderWord(int(word)), int(seq)
