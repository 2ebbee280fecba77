"""What a plan is made for: nodes, links, layers, and what is left open.

Units: seconds, bytes, FLOP, samples; links are directed. Nodes that can be exchanged without
changing anything (same figures, same links to all others) are of one kind, and plans are sought
over kinds: that is exact, and it is what makes large clusters small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

MAX_NODES = 20_000
MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Figures that some nodes share: effective FLOP/s, usable bytes, seconds per layer pass. What
    type they are called makes no difference.
    """

    type: str = field(compare=False)
    flops: float
    mem: float
    t0: float


@dataclass(frozen=True)
class Layers:
    """Per layer: forward FLOP per sample, parameters, bytes per sample sent on, and bytes per
    sample kept from forward to backward.
    """

    fwd: Floats
    params: Floats
    out: Floats
    act: Floats

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
class Scenario:
    """A planning problem under the cost model RCM-1.

    Attributes:
        names: of the nodes, by index.
        kinds: what nodes there are; `kind_of` gives each node's, `members` each kind's nodes.
        bw: bytes/s from a node of one kind to another of a kind; 0 where there is no link.
        lat: seconds, likewise.
        max_stages: how long a pipeline may be.
        max_replicas: how many pipelines there may be.
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
    recomputes: tuple[bool, ...] = (False,)
    buckets: tuple[float | None, ...] = (None,)
    overlap: bool = False
    max_stages: int = MAX_LAYERS
    max_replicas: int = MAX_NODES
    min_replicas: int = 1
    bwd_mult: float = 2.0
    grad_bytes: float = 2.0
    input_bytes: float = 0.0
    fixed: float = 0.0
    runtime: bool = False
    time_limit_s: float | None = None
    warnings: tuple[str, ...] = field(default=())

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def counts(self) -> tuple[int, ...]:
        """Nodes of each kind."""
        return tuple(len(each) for each in self.members)

    @cached_property
    def flops(self) -> Floats:
        """FLOP/s per kind."""
        return np.array([kind.flops for kind in self.kinds])

    @cached_property
    def mem(self) -> Floats:
        """Usable bytes per kind."""
        return np.array([kind.mem for kind in self.kinds])

    @cached_property
    def t0(self) -> Floats:
        """Seconds per layer pass, per kind."""
        return np.array([kind.t0 for kind in self.kinds])

    @cached_property
    def speed(self) -> Floats:
        """FLOP/s per kind with all that a layer pass costs, one sample at a time."""
        fwd = self.layers.fwd
        spent = self.layers.count * self.t0 + fwd.sum() / self.flops
        return np.asarray(fwd.sum() / spent)

    def replaced(self, **changes: Any) -> Scenario:
        """Return a copy with some values changed."""
        return replace(self, **changes)


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
        kind_bw, kind_lat = np.full(shape, float(bw)), np.full(shape, float(lat))
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
