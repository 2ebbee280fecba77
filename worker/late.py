"""A step's status that stays on the device: the host launches the next step and reads it then.

The decision whether an update is applied falls on the device, in the same step and from the same
numbers as elsewhere (`worker.guard`): an optimizer that can be told by a flag leaves weights and
state as they were. What the host does with a status (telling of a skipped step, counting updates,
following rank 0's order) it does one step later, on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from trainmaster.layout import RankRole
from worker.gradients.norms import Norms, OnDevice
from worker.guard import Contribution, Status, StatusVector, Told
from worker.model.user_code import refuse_weight

CLIP_EPSILON: Final = 1e-6
LateLoss = tuple[torch.Tensor, torch.Tensor | float]
"""(sum, weight) of a micro-batch, not yet read."""


@dataclass(frozen=True, slots=True)
class LateContribution:
    """As `guard.Contribution`, with what the device has not told yet."""

    losses: Mapping[int, LateLoss]
    own: OnDevice
    summed: OnDevice
    span_s: float
    order: Told


@dataclass(frozen=True, slots=True)
class Gate:
    """What a status decides on the device.

    Attributes:
        closed: 1 where the update must not be applied, else 0; float32, for the optimizer.
        factor: what the sums of gradients are multiplied by: clipped, and divided by the weight.
    """

    closed: torch.Tensor
    factor: torch.Tensor


class LateStatus:
    """A status that the host may read when it is there.

    Args:
        vector: the sum of all ranks' vectors, on the device.
    """

    def __init__(self, layout: StatusVector, vector: torch.Tensor) -> None:
        self._layout = layout
        self._status: Status | None = None
        is_cuda = vector.is_cuda
        self._host = torch.empty(vector.shape, dtype=vector.dtype, device="cpu", pin_memory=is_cuda)
        self._host.copy_(vector, non_blocking=True)
        self._copied = torch.cuda.Event() if is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def read(self) -> Status:
        """Wait until it is there; return it."""
        if self._status is None:
            if self._copied is not None:
                self._copied.synchronize()
            status = self._layout.decode(self._host.tolist())
            refuse_weight(status.weight, of="the micro-batches of a step")
            self._status = status
        return self._status


class LateGuard:
    """Shares statuses among ranks on devices of one kind.

    Args:
        layout: of the vector; of a run whose sums are not ordered.
        clip: the greatest gradient norm that is left as it is; None for any.
    """

    def __init__(
        self,
        layout: StatusVector,
        role: RankRole,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        clip: float | None,
    ) -> None:
        self._layout = layout
        self._role = role
        self._group = group
        self._device = device
        self._clip = clip

    def share(self, seen: LateContribution) -> tuple[LateStatus, Gate]:
        """Sum what all ranks saw; nothing here waits for the device."""
        vector = self._encoded(seen)
        dist.all_reduce(vector, group=self._group)
        return LateStatus(self._layout, vector), self._gate(vector)

    def _encoded(self, seen: LateContribution) -> torch.Tensor:
        layout, role = self._layout, self._role
        nothing = Norms({}, 0)
        told = Contribution({}, nothing, nothing, seen.span_s, seen.order)
        host = torch.tensor(layout.encode(told, role), dtype=torch.float64)
        if self._device.type == "cuda":
            host = host.pin_memory()
        vector = host.to(self._device, non_blocking=True)
        loss_sum, weight = self._added(seen.losses)
        if role.tensor == 0:
            vector[layout.losses] += loss_sum
            vector[layout.weights] += weight
        if layout.speaks_for_sums(role):
            seen.summed.add_to(vector[layout.layers])
        vector[layout.replicas][role.replica] += seen.own.squares.cumsum(0)[-1]
        bad = seen.own.num_bad + ~torch.isfinite(loss_sum)
        vector[layout.non_finite][role.rank] += bad
        return vector

    def _added(self, losses: Mapping[int, LateLoss]) -> tuple[torch.Tensor, torch.Tensor]:
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        weight = torch.zeros_like(loss_sum)
        for _, (loss, each) in sorted(losses.items()):
            loss_sum = loss_sum + loss.detach()
            weight = weight + (each.detach() if isinstance(each, torch.Tensor) else each)
        return loss_sum, weight

    def _gate(self, vector: torch.Tensor) -> Gate:
        layout = self._layout
        loss_sum, weight = vector[layout.losses].sum(), vector[layout.weights].sum()
        norm = vector[layout.layers].cumsum(0)[-1].sqrt() / weight
        opens = (
            (vector[layout.non_finite].sum() == 0)
            & (weight > 0)
            & torch.isfinite(norm)
            & torch.isfinite(loss_sum / weight)
        )
        clip = (
            torch.ones_like(norm)
            if self._clip is None
            else (self._clip / (norm + CLIP_EPSILON)).clamp(max=1.0)
        )
        return Gate((~opens).float(), torch.where(opens, clip / weight, 0.0))
