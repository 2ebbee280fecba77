"""Places made of several nodes of one machine, which share each layer between them (tensor
parallelism): a scenario with such places for nodes.

What a layer divides is computed in parallel, the rest on each of them; twice in a pass they sum
what they have (Shoeybi et al., 2019), over the links within the machine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from control.planner.ring import slowest
from control.planner.scenario import Floats, Layers, LayerTime, NodeKind, Scenario, with_nodes
from trainmaster.errors import Problem, SpecError

SUMS_PER_PASS = 2


def shared(scenario: Scenario, tensor: int) -> Scenario:
    """Return the scenario with places of `tensor` equal nodes of one machine; nodes that are left
    over are left out.

    Raises:
        SpecError: no machine has as many equal nodes.
    """
    if tensor == 1:
        return scenario.replaced(tensors=(1,))
    s = scenario
    groups: dict[tuple[str, int], list[int]] = {}
    hosts = s.hosts or tuple(map(str, range(s.num_nodes)))
    for node, host in enumerate(hosts):
        groups.setdefault((host, s.kind_of[node]), []).append(node)
    places = [
        group[first : first + tensor]
        for group in groups.values()
        for first in range(0, len(group) - tensor + 1, tensor)
    ]
    if not places:
        raise SpecError(
            [Problem("tensor_choices", f"no machine has {tensor} equal nodes for one place")]
        )
    split = np.array(s.split or (1.0,) * s.layers.count)
    kinds = [s.kind_of[place[0]] for place in places]
    figures = {kind: _place(s, kind, tensor, split) for kind in sorted(set(kinds))}
    # Each of a place's nodes holds what it cannot divide, and what it gives, as a whole.
    whole = (tensor - 1) * np.minimum(s.layers.out, s.layers.act)
    selective = s.layers.act_selective
    layers = Layers(
        s.layers.fwd,
        s.layers.params * (split + tensor * (1 - split)),
        s.layers.out,
        s.layers.act + whole,
        None if selective is None else selective + whole,
        s.layers.again,
    )
    pairs = np.ix_(kinds, kinds)
    bw, lat = s.bw[pairs].copy(), s.lat[pairs].copy()
    np.fill_diagonal(bw, 0.0)
    np.fill_diagonal(lat, 0.0)
    sharing = s.replaced(
        layers=layers,
        fixed=s.fixed * tensor,
        tensors=(tensor,),
        hosts=tuple(hosts[place[0]] for place in places),
        # A gradient is summed by the node that holds it, each over its own part of the ring.
        grad_bytes=s.grad_bytes / tensor,
        weight_bytes=s.weight_bytes / tensor,
    )
    names = ["+".join(s.names[node] for node in place) for place in places]
    return with_nodes(sharing, names, [figures[kind] for kind in kinds], bw, lat)


def _place(s: Scenario, kind: int, tensor: int, split: Floats) -> NodeKind:
    figures = s.kinds[kind]
    [ring] = slowest(s.bw, s.lat, [(kind, tensor)]) or [None]
    if ring is None:
        raise SpecError([Problem("tensor_choices", "nodes of one place need links to each other")])
    hops = 2 * (tensor - 1)
    # A layer that divides nothing sums nothing.
    rounds = np.where(split > 0, SUMS_PER_PASS, 0)
    fixed = rounds * hops * ring.lat
    per_sample = rounds * hops / tensor * s.layers.out / ring.bw
    part = split / tensor + (1 - split)
    timed = []
    for layer, each in enumerate(_times(s, figures)):
        timed.append(
            LayerTime(
                each.forward_s + float(fixed[layer]),
                each.forward_per_sample_s * float(part[layer]) + float(per_sample[layer]),
                each.backward_s + float(fixed[layer]),
                each.backward_per_sample_s * float(part[layer]) + float(per_sample[layer]),
            )
        )
    return replace(
        figures,
        flops=tensor * figures.flops,
        mem=tensor * figures.mem,
        timed=tuple(timed),
        host_mem=tensor * figures.host_mem,
        memory_bw=tensor * figures.memory_bw,
        mtbf_s=figures.mtbf_s / tensor,
        price=tensor * figures.price,
    )


def _times(s: Scenario, figures: NodeKind) -> tuple[LayerTime, ...]:
    if figures.timed:
        return figures.timed
    return tuple(
        LayerTime(
            figures.t0,
            float(fwd) / figures.flops,
            s.bwd_mult * figures.t0,
            s.bwd_mult * float(fwd) / figures.flops,
        )
        for fwd in s.layers.fwd
    )
