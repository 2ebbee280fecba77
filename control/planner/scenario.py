"""What a plan is made for: nodes, links, layers, and what is left open.

Units: seconds, bytes, FLOP, samples; links are directed. Nodes that can be exchanged without
changing anything (same figures, same links to all others) are of one kind, and plans are sought
over kinds: that is exact, and it is what makes large clusters small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from control.planner.doubt import Doubt
from control.planner.states import MIXED_ADAM, States, Table
from control.planner.worth import Objective, Worth
from trainmaster.cells import Recompute

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

MAX_NODES = 20_000
MAX_LAYERS = 4096


class LayerTime(NamedTuple):
    """What a layer's passes take: seconds whatever their size, and seconds per sample."""

    forward_s: float
    forward_per_sample_s: float
    backward_s: float
    backward_per_sample_s: float

    def times(self, factor: float) -> LayerTime:
        """Return it so many times as long."""
        return LayerTime(*(factor * each for each in self))


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Figures that some nodes share. What type they are called makes no difference.

    Attributes:
        flops: effective FLOP/s.
        mem: usable bytes.
        t0: seconds per layer pass.
        timed: what each layer takes, where that was measured: it goes before `flops` and `t0`.
        host_mem: bytes of the host, for an optimizer that works there.
        memory_bw, host_bw, host_link_bw: bytes/s of the device's memory, of the host's, and of the
            way between them; infinite where what they carry is not counted.
        mtbf_s: between its failures.
        price: per second.
        overlap_slowdown: how many times as long compute takes while sums are under way.
    """

    type: str = field(compare=False)
    flops: float
    mem: float
    t0: float
    timed: tuple[LayerTime, ...] = ()
    host_mem: float = math.inf
    memory_bw: float = math.inf
    host_bw: float = math.inf
    host_link_bw: float = math.inf
    mtbf_s: float = math.inf
    price: float = 0.0
    overlap_slowdown: float = 1.0

    def faster(self, factor: float) -> NodeKind:
        """Return a node that computes so many times as fast; what passes cost beside their work
        stays.
        """
        timed = tuple(
            each._replace(
                forward_per_sample_s=each.forward_per_sample_s / factor,
                backward_per_sample_s=each.backward_per_sample_s / factor,
            )
            for each in self.timed
        )
        return replace(self, flops=factor * self.flops, timed=timed)


@dataclass(frozen=True)
class Layers:
    """Per layer.

    Attributes:
        fwd: FLOP of a forward per sample.
        params: parameters.
        out: bytes per sample sent on.
        act: bytes per sample kept from forward to backward.
        act_selective: the same under selective recompute; None where it is not known.
        again: the share of a forward that selective recompute computes again.
    """

    fwd: Floats
    params: Floats
    out: Floats
    act: Floats
    act_selective: Floats | None = None
    again: float = 0.0

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.fwd)

    @cached_property
    def sums(self) -> tuple[Floats, Floats, Floats]:
        """Running sums of fwd, params and act, from 0."""
        return _running(self.fwd), _running(self.params), _running(self.act)


def _running(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


@dataclass(frozen=True)
class Seconds:
    """What passes of one micro-batch take on each kind of node: running sums over layers, from 0
    (K x (L + 1)).
    """

    forward: Floats
    backward: Floats

    @cached_property
    def rows(self) -> tuple[list[list[float]], list[list[float]]]:
        """Both as lists."""
        return self.forward.tolist(), self.backward.tolist()

    @cached_property
    def both(self) -> Floats:
        """Forward and backward together."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Scenario:
    """A planning problem under the cost model RCM-1.

    Attributes:
        names: of the nodes, by index.
        kinds: what nodes there are; `kind_of` gives each node's, `members` each kind's nodes.
        bw: bytes/s from a node of one kind to another of a kind; 0 where there is no link.
        lat: seconds, likewise.
        max_stages: how long a pipeline may be.
        max_replicas: how many pipelines there may be.
        states: bytes per parameter, by how replicas share.
        offloads: whether the optimizer may work in host memory.
        grad_bytes, weight_bytes: of a gradient and of a parameter on the wire.
        hosts: of each node, the machine that it is part of: only nodes of one machine may share a
            layer (`tensors`: how many do). Empty: each is a machine of its own.
        domains: of each node, what may fail as one: copies of a layer are to lie in different ones.
            Empty: wherever.
        split: of each layer, the share that nodes can divide among them.
        objective: what is to be best; None: the step's time.
        stall_s, write_s, restart_s: of a checkpoint and of a restart (`control.planner.worth`).
        doubt: under which a plan is to hold up; None: figures are taken as they stand.
        time_limit_s: how long an answer may take.
        warnings: what was not understood, or is odd.
        runtime: whether only plans are wanted that the runtime carries out.
    """

    names: tuple[str, ...]
    kinds: tuple[NodeKind, ...]
    kind_of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    bw: Floats
    lat: Floats
    layers: Layers
    global_batch: int
    micro_batches: tuple[int, ...]
    schedules: tuple[str, ...] = ("1f1b",)
    zeros: tuple[int, ...] = (0,)
    recomputes: tuple[Recompute, ...] = ("none",)
    offloads: tuple[bool, ...] = (False,)
    tensors: tuple[int, ...] = (1,)
    buckets: tuple[float | None, ...] = (None,)
    overlap: bool = False
    max_stages: int = MAX_LAYERS
    max_replicas: int = MAX_NODES
    min_replicas: int = 1
    bwd_mult: float = 2.0
    grad_bytes: float = 2.0
    weight_bytes: float = 2.0
    states: Table = field(default_factory=lambda: MIXED_ADAM)
    hosts: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    split: tuple[float, ...] = ()
    objective: Objective | None = None
    stall_s: float = 0.0
    write_s: float = 0.0
    restart_s: float = 0.0
    input_bytes: float = 0.0
    fixed: float = 0.0
    runtime: bool = False
    doubt: Doubt | None = None
    time_limit_s: float | None = None
    warnings: tuple[str, ...] = field(default=())

    @cached_property
    def has_shared_links(self) -> bool:
        """Whether a machine of several nodes has links to another machine."""
        return 1 < len(set(self.hosts)) < len(self.hosts)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def counts(self) -> tuple[int, ...]:
        """Nodes of each kind."""
        return tuple(len(each) for each in self.members)

    @cached_property
    def mem(self) -> Floats:
        """Usable bytes per kind."""
        return np.array([kind.mem for kind in self.kinds])

    @cached_property
    def host_mem(self) -> Floats:
        """Bytes of the host per kind."""
        return np.array([kind.host_mem for kind in self.kinds])

    @cached_property
    def speed(self) -> Floats:
        """FLOP/s per kind with all that a forward costs, one sample at a time."""
        return np.asarray(self.layers.fwd.sum() / self.seconds(1).forward[:, -1])

    def seconds(self, micro_batch: int, recompute: Recompute = "none") -> Seconds:
        """Return what passes of a micro-batch take on each kind of node."""
        key = (micro_batch, recompute)
        if key not in self._seconds:
            self._seconds[key] = self._summed(micro_batch, recompute)
        return self._seconds[key]

    @cached_property
    def _seconds(self) -> dict[tuple[int, str], Seconds]:
        return {}

    def _summed(self, b: int, recompute: Recompute) -> Seconds:
        forward = np.zeros((len(self.kinds), self.layers.count + 1))
        backward = np.zeros_like(forward)
        for row, kind in enumerate(self.kinds):
            if kind.timed:
                told = np.array(kind.timed)
                here, back = told[:, 0] + b * told[:, 1], told[:, 2] + b * told[:, 3]
            else:
                here = kind.t0 + b * self.layers.fwd / kind.flops
                back = self.bwd_mult * here
            forward[row, 1:] = np.cumsum(here)
            backward[row, 1:] = np.cumsum(back + self.computed_again(recompute) * here)
        return Seconds(forward, backward)

    def computed_again(self, recompute: Recompute) -> float:
        """Return the share of a forward that a backward does once more."""
        return {"none": 0.0, "selective": self.layers.again, "full": 1.0}[recompute]

    @cached_property
    def kept(self) -> dict[Recompute, Floats]:
        """Running sums of bytes per sample that stages keep for each micro-batch in flight."""
        layers = self.layers
        arriving = np.concatenate([[self.input_bytes], layers.out[:-1]])
        selective = layers.act if layers.act_selective is None else layers.act_selective
        return {
            "none": layers.sums[2],
            "selective": _running(selective),
            "full": _running(arriving),
        }

    def states_of(self, zero: int, *, offload: bool) -> States:
        """Return the bytes per parameter."""
        return self.states[zero, offload]

    def laps(self, zero: int) -> int:
        """Return how often sums of gradients go round a ring of replicas: an all-reduce is a
        scatter and a gathering. ZeRO 3 does both within passes; the runtime's ZeRO 2 gathers
        parameters instead, after the update.
        """
        if zero == 3:
            return 0
        return 1 if self.runtime and zero == 2 else 2

    @cached_property
    def counts_updates(self) -> bool:
        """Whether the optimizer's time is counted."""
        return any(math.isfinite(min(k.memory_bw, k.host_bw)) for k in self.kinds)

    @cached_property
    def gains_by_sharing(self) -> bool:
        """Whether a ZeRO level may make a step shorter, and not memory smaller alone."""
        return self.counts_updates or (self.runtime and max(self.zeros) > 0)

    def total(self, micro_batch: int) -> int:
        """Return the micro-batches of a step; the last one may be smaller."""
        return -(-self.global_batch // micro_batch)

    @cached_property
    def worth(self) -> Worth | None:
        """What plans are judged by; None: the time of a step alone."""
        if self.objective is None:
            return None
        return Worth(
            self.objective,
            self.stall_s,
            self.write_s,
            self.restart_s,
            tuple(kind.mtbf_s for kind in self.kinds),
            tuple(kind.price for kind in self.kinds),
        )

    def replaced(self, **changes: Any) -> Scenario:
        """Return a copy with some values changed."""
        return replace(self, **changes)


def unlinked(scenario: Scenario) -> list[str]:
    """Return the nodes, by name, that are not joined to any other both ways."""
    s = scenario
    if s.num_nodes == 1:
        return []
    both = (s.bw > 0) & (s.bw.T > 0)
    lonely: list[int] = []
    for kind, members in enumerate(s.members):
        others = both[kind].copy()
        others[kind] &= len(members) > 1
        if not others.any():
            lonely += members
    return [s.names[node] for node in sorted(lonely)]


def with_nodes(
    scenario: Scenario,
    names: Sequence[str],
    figures: Sequence[NodeKind],
    bw: Floats | float,
    lat: Floats | float,
) -> Scenario:
    """Return `scenario` on these nodes. Links are matrices, or one figure for all pairs."""
    if isinstance(bw, np.ndarray) and isinstance(lat, np.ndarray):
        groups = _interchangeable(figures, bw, lat)
        first = np.array([group[0] for group in groups])
        other = np.array([group[1] if len(group) > 1 else group[0] for group in groups])
        kind_bw, kind_lat = bw[np.ix_(first, first)], lat[np.ix_(first, first)]
        diagonal = np.arange(len(groups))
        kind_bw[diagonal, diagonal] = bw[first, other]
        kind_lat[diagonal, diagonal] = lat[first, other]
    else:
        by_figures: dict[NodeKind, list[int]] = {}
        for node, figure in enumerate(figures):
            by_figures.setdefault(figure, []).append(node)
        groups = list(by_figures.values())
        shape = (len(groups), len(groups))
        kind_bw = np.broadcast_to(np.float64(bw), shape)
        kind_lat = np.broadcast_to(np.float64(lat), shape)
    kind_of = [0] * len(names)
    for kind, group in enumerate(groups):
        for node in group:
            kind_of[node] = kind
    return scenario.replaced(
        names=tuple(names),
        kinds=tuple(figures[group[0]] for group in groups),
        kind_of=tuple(kind_of),
        members=tuple(tuple(group) for group in groups),
        bw=kind_bw,
        lat=kind_lat,
    )


def _interchangeable(figures: Sequence[NodeKind], bw: Floats, lat: Floats) -> list[list[int]]:
    groups: list[list[int]] = []
    for node, kind in enumerate(figures):
        for group in groups:
            if (
                figures[group[0]] == kind
                and _exchange(bw, node, group[0])
                and _exchange(lat, node, group[0])
            ):
                group.append(node)
                break
        else:
            groups.append([node])
    return groups


def _exchange(links: Floats, one: int, other: int) -> bool:
    """Whether two nodes have the same links to all others, and alike both ways between them."""
    if links[one, other] != links[other, one]:
        return False
    here = np.ones(len(links), dtype=bool)
    here[[one, other]] = False
    return bool(
        (links[one, here] == links[other, here]).all()
        and (links[here, one] == links[here, other]).all()
    )
