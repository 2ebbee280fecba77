"""Process groups of one generation: everybody, my pipeline, my stage, and one for checkpoints.

Every rank creates all groups in the same order, since that is what torch asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from trainmaster.layout import RankRole, replica_ranks, stage_ranks
from trainmaster.plan import Plan

PEER_TIMEOUT: Final = timedelta(minutes=10)
"""For how long a peer that lives and says nothing holds the others up; one that dies is noticed at
once.
"""
STORE_TIMEOUT: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that a rank belongs to.

    Attributes:
        pipeline: the ranks of its replica, first stage first.
        stage: the ranks that hold the same layers, one per replica: they sum gradients.
        checkpoint: all ranks, apart from `world` so that saving never mixes with training.
    """

    world: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    stage: dist.ProcessGroup
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
    pipelines = [_group(replica_ranks(plan, replica)) for replica in range(plan.replicas)]
    stages = [_group(stage_ranks(plan, stage)) for stage in range(plan.stages)]
    world = dist.group.WORLD
    assert world is not None, "init_process_group makes the world"
    return Groups(
        world=world,
        pipeline=pipelines[role.replica],
        stage=stages[role.stage],
        checkpoint=_group(tuple(range(plan.world_size))),
    )


def leave(groups: Groups) -> None:
    """Wait until every rank has come this far, then dissolve all groups."""
    dist.barrier(groups.world)
    dist.destroy_process_group()


def _group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    return dist.new_group(list(ranks), backend="gloo", timeout=PEER_TIMEOUT)
