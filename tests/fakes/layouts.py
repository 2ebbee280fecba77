"""All ranks of a layout in one process: what each holds is built by the runtime's own code, over
process groups that know their ranks and carry nothing. And random layouts, as a hypothesis
strategy.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainmaster.layout import RankRole, place_ranks, roles, segments
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import OptimizerSpec
from trainmaster.storage import Storage
from worker.assembly import optimizer_of
from worker.carrier import Carrier
from worker.checkpoint import part as parts
from worker.checkpoint.part import About
from worker.checkpoint.peers import Peers
from worker.checkpoint.reader import OpenCheckpoint
from worker.checkpoint.tensors import Shard, as_shard
from worker.checkpoint.writer import Saved, save_part
from worker.devices import ComputeDevice, Relay
from worker.gradients.bucket import Sharing
from worker.gradients.reduce import Gradients
from worker.groups import SegmentGroup
from worker.launch import SlotDevice
from worker.model.parameters import held
from worker.model.sharded import shard
from worker.model.tensor_parallel import spread
from worker.model.workload import StageLayers, build_layers
from worker.optimizer import Optimizer
from worker.training_state import named_for_loading, optimizer_tensors, tensors_of

WIDTH = 6
_APART = 64
CPU = ComputeDevice.of(SlotDevice())


class Layer(nn.Module):
    """Two matrices that ranks of a place can divide, and what they cannot."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.odd = nn.Parameter(torch.randn(rows, 3, 2))
        self.frozen = nn.Parameter(torch.randn(rows), requires_grad=False)


class OddModel:
    """A workload of which only the layers are used; the n-th has `rows[n]` rows in its odd ones."""

    tensor_units = WIDTH

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows

    def build(self, layers: Sequence[int], *, seed: int) -> StageLayers:
        """Build some layers; the same seed gives the same weights on every rank."""
        return build_layers([partial(Layer, rows) for rows in self.rows], layers, seed=seed)

    def tensor_parallel(self, layer: int, /) -> Mapping[str, ParallelStyle]:
        """The matrices only: of one the rows, of the other the columns."""
        return {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def layers(self) -> list[object]:
        raise NotImplementedError

    def loss(self, output: object, target: object) -> tuple[float, float]:
        raise NotImplementedError

    def dataset(self) -> object:
        raise NotImplementedError


@st.composite
def plans(draw: st.DrawFn, num_layers: int, max_replicas: int = 3) -> Plan:
    """A layout that the runtime carries out: replicas, cuts, tensor ranks, ZeRO level, offload."""
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    replicas = draw(st.integers(1, max_replicas))
    tensor = 1 if zero == 3 else draw(st.sampled_from([1, 2, 3]))
    alike = zero == 3 or draw(st.booleans())
    cut = _cuts(num_layers)
    layers = [draw(cut)] * replicas if alike else [draw(cut) for _ in range(replicas)]
    shares = [2] * replicas if zero == 3 else [draw(st.integers(1, 3)) for _ in layers]
    virtual = 1
    depths = {len(each) for each in layers}
    if all(depth % 2 == 0 for depth in depths) and draw(st.booleans()):
        virtual = 2
    offload = "none" if not draw(st.booleans()) else "parameters" if zero == 3 else "optimizer"
    ask = {
        "micro_batch": 1,
        "schedule": "looped_bfs" if virtual == 2 else "gpipe",
        "virtual": virtual,
        "zero": zero,
        "tensor": tensor,
        "offload": offload,
        "bucket_mb": draw(st.sampled_from([1e-4, 25.0])),
        "pipelines": [
            {"layers": each, "micro_batches": share}
            for each, share in zip(layers, shares, strict=True)
        ],
    }
    return resolve(ParallelAsk.model_validate(ask), num_layers=num_layers, global_batch=sum(shares))


def _cuts(num_layers: int) -> st.SearchStrategy[list[int]]:
    """How a pipeline's layers are cut into stages: their counts."""
    inner = st.sets(st.integers(1, num_layers - 1)) if num_layers > 1 else st.just(set[int]())
    return inner.map(
        lambda cuts: [
            end - first
            for first, end in zip([0, *sorted(cuts)], [*sorted(cuts), num_layers], strict=True)
        ]
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank of a layout holds."""

    role: RankRole
    layers: StageLayers
    gradients: Gradients
    optimizer: Optimizer

    def saved(self) -> dict[str, torch.Tensor | Shard]:
        """What it saves."""
        return tensors_of(self.layers, self.gradients.pieces, self.optimizer, self.role)

    def restore(self, opened: OpenCheckpoint) -> None:
        """Take over what a checkpoint holds, as an attempt does that resumes from it."""
        state = optimizer_tensors(opened.manifest, self.gradients.pieces)
        opened.load(named_for_loading(self.layers, state, self.role))
        self.gradients.refresh()
        self.optimizer.adopt({name: as_shard(each).tensor for name, each in state.items()})


def rank_of(plan: Plan, role: RankRole, model: OddModel, *, seed: int) -> Rank:
    """Build what a rank holds, with weights by `seed` and an optimizer without state."""
    # Torch remembers by their ranks what it found of meshes, and takes the process for one rank.
    # So each rank here is in a world of its own, where the same ranks have other numbers.
    first = role.rank * _APART

    def group(ranks: Sequence[int]) -> dist.ProcessGroup:
        return dist.new_group([first + rank for rank in ranks], backend="fake")

    dist.init_process_group(
        "fake", store=FakeStore(), rank=first + role.rank, world_size=_APART * _APART
    )
    try:
        layers = model.build(role.layers, seed=seed)
        if plan.tensor > 1:
            place = group(place_ranks(plan, role.replica, role.stage))
            spread(layers, model, place, CPU)  # type: ignore[arg-type]  # only its layers matter
        mine = [each for each in segments(plan, role.tensor) if role.rank in each.ranks]
        groups = [
            SegmentGroup(
                segment,
                Carrier(group(segment.ranks), Relay(CPU)) if plan.replicas > 1 else None,
            )
            for segment in mine
        ]
        if role.is_divided:
            shard(layers, groups, CPU, on_host=plan.offload == "parameters", links={})
        gradients = Gradients(
            held(layers, tensor=role.tensor, is_divided=role.is_divided),
            role.stages,
            groups,
            bucket_bytes=plan.bucket_bytes,
            sharing=Sharing(
                plan.zero, plan.replicas, role.replica, on_host=plan.offload == "optimizer"
            ),
            links={},
        )
    finally:
        dist.destroy_process_group()
    optimizer = optimizer_of(gradients.pieces, OptimizerSpec(lr=0.1), model)  # type: ignore[arg-type]
    return Rank(role, layers, gradients, optimizer)


def ranks_of(plan: Plan, model: OddModel, *, seed: int) -> list[Rank]:
    """Build all ranks of a layout, one after the other."""
    return [rank_of(plan, role, model, seed=seed) for role in roles(plan)]


class _Room:
    """Where ranks that are threads meet."""

    def __init__(self, world_size: int) -> None:
        self.told = [b""] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)


class ThreadPeers(Peers):
    """Ranks that are threads of one process."""

    def __init__(self, room: _Room, rank: int) -> None:
        super().__init__(None, rank, len(room.told))
        self._room = room

    def collect(self, data: bytes) -> list[bytes]:
        self._room.told[self.rank] = data
        self._room.barrier.wait()
        told = list(self._room.told)
        self._room.barrier.wait()
        return told

    def gather(self, data: bytes) -> list[bytes]:
        told = self.collect(data)
        return told if self.rank == 0 else []

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        return self.collect(data or b"")[source]


def save_all(storage: Storage, plan: Plan, ranks: Sequence[Rank], *, generation: int) -> Saved:
    """Save with all ranks at once."""
    room = _Room(len(ranks))

    def save_one(rank: Rank) -> Saved:
        about = About("r1", generation, 20, rank.role.rank)
        return save_part(
            storage,
            lambda: parts.of_tensors(rank.saved(), about),
            about=about,
            layout=plan.model_dump(mode="json", exclude={"predicted"}),
            parent=None,
            state={"step": 20} if rank.role.rank == 0 else None,
            peers=ThreadPeers(room, rank.role.rank),
        )

    with ThreadPoolExecutor(len(ranks)) as threads:
        first, *_ = threads.map(save_one, ranks)
    return first
