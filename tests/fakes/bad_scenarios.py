"""A scenario that is good, and what may be wrong with one: where that is told, in which words."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

GOOD: dict[str, Any] = {
    "nodes": [
        {"name": "a", "type": "A", "flops": 4e12, "mem": 1e10, "t0": 0.0},
        {"name": "b", "type": "B", "flops": 1e12, "mem": 1e10, "t0": 0.0},
    ],
    "layers": [{"fwd": 2e9, "params": 1e6, "out": 1e5, "act": 1e6}] * 4,
    "bw": [[0.0, 1e9], [1e9, 0.0]],
    "lat": [[0.0, 1e-5], [1e-5, 0.0]],
    "global_batch": 8,
    "micro_batch_choices": [1, 2],
}


def changed(*path: Any, to: Any, of: dict[str, Any] = GOOD) -> dict[str, Any]:
    """Return the good one with one value changed; None takes it away."""
    scenario = copy.deepcopy(of)
    here: Any = scenario
    for part in path[:-1]:
        here = here[part]
    if to is None:
        del here[path[-1]]
    else:
        here[path[-1]] = to
    return scenario


BAD = [
    (changed("nodes", 1, "flops", to=0), "nodes[1].flops", "above 0"),
    (changed("nodes", 1, "flops", to=1e-320), "nodes[1].flops", "at least 1e-30, not"),
    (changed("nodes", 1, "flops", to=10**400), "nodes[1].flops", "below 1e+30, not 1000"),
    (changed("nodes", 1, "t0", to=1e-320), "nodes[1].t0", "0, or at least 1e-30, not"),
    (changed("layers", 0, "fwd", to=1e-320), "layers[0].fwd", "at least 1e-30, not"),
    (changed("nodes", 1, "flops", to=-1e12), "nodes[1].flops", "above 0, not -1e+12"),
    (changed("nodes", 1, "flops", to=math.nan), "nodes[1].flops", "finite number, not nan"),
    (changed("nodes", 0, "mem", to=math.inf), "nodes[0].mem", "finite number, not inf"),
    (changed("nodes", 0, "mem", to=None), "nodes[0].mem", "is needed"),
    (changed("nodes", 0, "mem", to="80 GB"), "nodes[0].mem", "a number, not '80 GB'"),
    (changed("nodes", 0, "t0", to=-1), "nodes[0].t0", "at least 0"),
    (changed("nodes", 1, "name", to="a"), "nodes[1].name", "'a' is the name of nodes[0]"),
    (changed("nodes", to=[]), "nodes", "at least one node"),
    (changed("nodes", 0, to=7), "nodes[0]", "must be a mapping"),
    (changed("layers", to=[]), "layers", "at least one layer"),
    (changed("layers", to="96 of them"), "layers", "96 x"),
    (changed("layers", 2, to={"fwd": 0, "params": 1, "out": 1, "act": 1}), "layers[2].fwd", ""),
    (changed("bw", 0, 1, to=-1.0), "bw[0][1]", "(a to b) must be at least 0"),
    (changed("bw", 0, 1, to=math.nan), "bw[0][1]", "finite"),
    (changed("bw", 0, to=[0.0]), "bw[0]", "each of the 2 nodes"),
    (changed("lat", to=None), "lat", "is needed"),
    (changed("global_batch", to=None), "global_batch", "is needed"),
    (changed("global_batch", to=2.5), "global_batch", "whole number"),
    (changed("global_batch", to=0), "global_batch", "above 0"),
    (changed("global_batch", to=10**12), "global_batch", "more than 1000000 micro-batches"),
    (changed("micro_batch_choices", to=[3, 5]), "global_batch", "not divisible by any of"),
    (changed("micro_batch_choices", to=[]), "micro_batch_choices", "at least one choice"),
    (changed("micro_batch_choices", to=[0]), "micro_batch_choices", "whole number"),
    (changed("zero_choices", to=[4]), "zero_choices", "0 to 3"),
    (changed("zero_choices", to=[-0.0]), "zero_choices", "0 to 3"),
    (changed("zero_choices", to=[[]]), "zero_choices", "0 to 3"),
    (changed("recompute_choices", to=[[]]), "recompute_choices", "true, false or"),
    (changed("schedules", to=["zigzag"]), "schedules", "1f1b or"),
    (changed("schedules", to=[{}]), "schedules", "1f1b or"),
    (changed("bucket_bytes", to=-5.0), "bucket_bytes", "above 0"),
    (changed("max_stages", to=0), "max_stages", ""),
    ({**GOOD, "min_replicas": 3, "max_replicas": 2}, "min_replicas", "above max_replicas"),
    ({**GOOD, "overlap": "yes"}, "overlap", "true or false"),
    ({**GOOD, "node_counts": {"A": 2}}, "node_types", "must map each type"),
    ("nonsense", "", "must be a mapping"),
    ({}, "nodes", "at least one node"),
]


NODE: dict[str, Any] = {
    **GOOD["nodes"][0],
    "host": "left",
    "memory_bw": 1e11,
    "host_bw": 1e10,
    "host_link_bw": 1e10,
    "host_mem": 1e11,
    "mtbf_s": 1e6,
    "price": 1.0,
    "overlap_slowdown": 1.1,
    "domain": "d",
}
WHOLE: dict[str, Any] = {
    **GOOD,
    "nodes": [NODE, {**NODE, "name": "b"}],
    "layers": [{**GOOD["layers"][0], "act_selective": 1e5, "split": 0.9}],
    "zero_choices": [0, 3],
    "recompute_choices": [False, "selective"],
    "offload_choices": [False],
    "tensor_choices": [1, 2],
    "schedules": ["1f1b"],
    "selective_again": 0.05,
    "objective": "goodput",
    "stall_s": 1.0,
    "write_s": 10.0,
    "restart_s": 60.0,
    "separate_domains": False,
    "bucket_choices": [None, 1e6],
    "overlap": True,
    "max_stages": 2,
    "min_replicas": 1,
    "max_replicas": 2,
    "time_limit_s": 5.0,
    "bwd_mult": 2.0,
    "grad_bytes": 2.0,
    "input_bytes": 10.0,
    "fixed": 1e6,
    "robust": {"sigma": 0.1, "samples": 4},
}
"""Every key that a scenario may have."""

ODD: list[Any] = [
    *(0, -1, 1e-320, 1e308, 10**400, 2**63, 1.5, -0.0, math.nan, math.inf, -math.inf),
    *("7", "", True, None, [], {}, [1e308], {"a": 1}),
]


def paths_in(given: Any = WHOLE, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value within."""
    if path:
        yield path
    if isinstance(given, dict | list):
        for key in given if isinstance(given, dict) else range(len(given)):
            yield from paths_in(given[key], (*path, key))
