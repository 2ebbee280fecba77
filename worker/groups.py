"""Process groups of one generation: everybody, my pipeline, my place, one for each of my segments,
and one for checkpoints.

Every rank creates all groups in the same order, since that is what torch asks for. Each segment has
its own: replicas finish their stages in different orders, and operations of one group must not
pass each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from trainmaster.layout import RankRole, Segment, place_ranks, replica_ranks, segments
from trainmaster.plan import Plan

PEER_TIMEOUT: Final = timedelta(minutes=10)
"""For how long a peer that lives and says nothing holds the others up; one that dies is noticed at
once.
"""
STORE_TIMEOUT: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """A segment of this rank's layers, and the ranks that sum its gradients; no group where this
    rank is the only one.
    """

    segment: Segment
    group: dist.ProcessGroup | None


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that a rank belongs to.

    Attributes:
        pipeline: the ranks of its replica with the same part of the tensors, first place first.
        place: the ranks of its replica that hold the other parts of the same tensors; None where
            there is one part.
        segments: its segments in order of layers.
        checkpoint: all ranks, apart from `world` so that saving never mixes with training.
    """

    world: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    place: dist.ProcessGroup | None
    segments: tuple[SegmentGroup, ...]
    checkpoint: dist.ProcessGroup


def join(*, store: str, prefix: str, plan: Plan, role: RankRole) -> Groups:
    """Meet all ranks of the generation at the store and return the groups; blocks until everybody
    is there.

    Args:
        store: host:port of the generation's TCPStore.
        prefix: what keeps this generation's keys apart from any other's.
    """
    host, _, port = store.rpartition(":")
    client = TCPStore(host.strip("[]"), int(port), is_master=False, timeout=STORE_TIMEOUT)
    dist.init_process_group(
        "gloo",
        store=PrefixStore(prefix, client),
        rank=role.rank,
        world_size=plan.world_size,
        timeout=PEER_TIMEOUT,
    )
    pipelines = [
        _group(replica_ranks(plan, replica, tensor))
        for replica in range(plan.replicas)
        for tensor in range(plan.tensor)
    ]
    places = {
        ranks: _group(ranks) if plan.tensor > 1 else None
        for replica, pipeline in enumerate(plan.pipelines)
        for stage in range(plan.depth_of(pipeline))
        if (ranks := place_ranks(plan, replica, stage))
    }
    found = [
        SegmentGroup(segment, _group(segment.ranks) if plan.replicas > 1 else None)
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
        checkpoint=_group(tuple(range(plan.world_size))),
    )


def leave(groups: Groups) -> None:
    """Wait until every rank has come this far, then dissolve all groups."""
    dist.barrier(groups.world)
    dist.destroy_process_group()


def _group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    return dist.new_group(list(ranks), backend="gloo", timeout=PEER_TIMEOUT)
