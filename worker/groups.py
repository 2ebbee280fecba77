"""Process groups of one generation: everybody, my pipeline, my place, one for each of my segments,
and one for checkpoints.

Every rank creates all groups in the same order, since that is what torch asks for. Each segment has
its own: replicas finish their stages in different orders, and operations of one group must not
pass each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from trainmaster.errors import Problem, SpecError
from trainmaster.layout import RankRole, Segment, place_ranks, replica_ranks, segments
from trainmaster.plan import Plan
from worker.carrier import Carrier
from worker.devices import GLOO, ComputeDevice, Relay, backend_of, cross, named

PEER_TIMEOUT: Final = timedelta(minutes=10)
"""For how long a peer that lives and says nothing holds the others up; one that dies is noticed at
once.
"""
STORE_TIMEOUT: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """A segment of this rank's layers, and the ranks that sum its gradients; no carrier where this
    rank is the only one.
    """

    segment: Segment
    carrier: Carrier | None


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that a rank belongs to.

    Attributes:
        pipeline: the ranks of its replica with the same part of the tensors, first place first.
        place: the ranks of its replica that hold the other parts of the same tensors; None where
            there is one part.
        segments: its segments in order of layers.
        kinds: of each rank's device.
        relay: what goes between kinds goes through it.
        pipeline_crosses: whether the ranks of `pipeline` are on devices of different kinds.
        checkpoint: all ranks, apart from `world` so that saving never mixes with training.
    """

    world: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    place: dist.ProcessGroup | None
    segments: tuple[SegmentGroup, ...]
    checkpoint: dist.ProcessGroup
    kinds: tuple[str, ...]
    pipeline_crosses: bool
    relay: Relay


def join(
    *,
    store: str,
    prefix: str,
    plan: Plan,
    role: RankRole,
    device: ComputeDevice,
    one_kind: bool = False,
) -> Groups:
    """Meet all ranks of the generation at the store and return the groups; blocks until everybody
    is there.

    Args:
        store: host:port of the generation's TCPStore.
        prefix: what keeps this generation's keys apart from any other's.
        one_kind: whether all devices must be of one kind, for the bits that were promised.

    Raises:
        SpecError: kinds of devices differ where the plan needs one.
    """
    host, _, port = store.rpartition(":")
    client = TCPStore(host.strip("[]"), int(port), is_master=False, timeout=STORE_TIMEOUT)
    shared = PrefixStore(prefix, client)
    kinds = _kinds(shared, plan, role, device)
    refuse_mixture(plan, kinds)
    if one_kind and cross(kinds):
        message = (
            "'layout' needs devices of one kind, since another rounds otherwise, but there are "
            f"{named(kinds, range(len(kinds)))}: choose nodes by placement.labels"
        )
        raise SpecError([Problem("train.determinism", message)])
    dist.init_process_group(
        backend_of(kinds),
        store=shared,
        rank=role.rank,
        world_size=plan.world_size,
        timeout=PEER_TIMEOUT,
    )

    def group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
        backend = backend_of(kinds[rank] for rank in ranks)
        return dist.new_group(list(ranks), backend=backend, timeout=PEER_TIMEOUT)

    def crosses(ranks: tuple[int, ...]) -> bool:
        return cross(kinds[rank] for rank in ranks)

    pipelines = [
        group(replica_ranks(plan, replica, tensor))
        for replica in range(plan.replicas)
        for tensor in range(plan.tensor)
    ]
    places = {
        ranks: group(ranks) if plan.tensor > 1 else None
        for replica, pipeline in enumerate(plan.pipelines)
        for stage in range(plan.depth_of(pipeline))
        if (ranks := place_ranks(plan, replica, stage))
    }
    relay = Relay(device)
    found = [
        SegmentGroup(
            segment,
            Carrier(group(segment.ranks), relay, crosses(segment.ranks))
            if plan.replicas > 1
            else None,
        )
        for tensor in range(plan.tensor)
        for segment in segments(plan, tensor)
    ]
    world = dist.group.WORLD
    assert world is not None, "init_process_group makes the world"
    return Groups(
        world=world,
        pipeline=pipelines[role.replica * plan.tensor + role.tensor],
        place=places[place_ranks(plan, role.replica, role.stage)],
        segments=tuple(each for each in found if role.rank in each.segment.ranks),
        checkpoint=dist.new_group(backend=GLOO, timeout=PEER_TIMEOUT),
        kinds=kinds,
        pipeline_crosses=crosses(replica_ranks(plan, role.replica, role.tensor)),
        relay=relay,
    )


def leave(groups: Groups) -> None:
    """Wait until every rank has come this far, then dissolve all groups."""
    dist.barrier(groups.world)
    dist.destroy_process_group()


def _kinds(
    store: PrefixStore, plan: Plan, role: RankRole, device: ComputeDevice
) -> tuple[str, ...]:
    """Return the kind of each rank's device; blocks until all have told theirs."""
    if plan.world_size == 1:
        return (device.kind,)
    store.set(f"kind/{role.rank}", device.kind)
    return tuple(store.get(f"kind/{rank}").decode() for rank in range(plan.world_size))


def refuse_mixture(plan: Plan, kinds: Sequence[str]) -> None:
    """Refuse kinds of devices that the plan cannot be carried out on.

    Raises:
        SpecError: ranks that divide matrices, or gather each other's parameters for each layer, are
            of different kinds.
    """
    for replica, pipeline in enumerate(plan.pipelines):
        for stage in range(plan.depth_of(pipeline)):
            ranks = place_ranks(plan, replica, stage)
            if cross(kinds[rank] for rank in ranks):
                message = (
                    f"{plan.tensor} needs devices of one kind at each place, but there are "
                    f"{named(kinds, ranks)}: choose nodes by placement.labels, or use 1"
                )
                raise SpecError([Problem("parallel.tensor", message)])
    if plan.zero == 3:
        for segment in segments(plan):
            if cross(kinds[rank] for rank in segment.ranks):
                message = (
                    "3 needs replicas on devices of one kind, but there are "
                    f"{named(kinds, segment.ranks)}: use 2, or choose nodes by placement.labels"
                )
                raise SpecError([Problem("parallel.zero", message)])


def replicas_cross(plan: Plan, kinds: Sequence[str]) -> bool:
    """Return whether replicas hold the same layers on different kinds of devices."""
    return any(cross(kinds[rank] for rank in each.ranks) for each in segments(plan))
