"""Random planning problems, small enough for every plan to be tried."""

from __future__ import annotations

import random
from typing import Any


def small_scenario(seed: int, *, nodes: int = 4, layers: int = 6) -> dict[str, Any]:
    """Return a scenario of at most so many nodes and layers: nodes and links of few or many kinds,
    directed, with memory that sometimes binds.
    """
    draw = random.Random(seed)
    num_nodes, num_layers = draw.randint(1, nodes), draw.randint(1, layers)
    alike = draw.random() < 0.4
    figures = [
        {
            "flops": draw.choice([1e12, 2e12, 4e12]) if alike else draw.uniform(1e12, 5e12),
            "mem": draw.choice([4e8, 1e9, 1e11]),
            "t0": draw.choice([0.0, 0.0, 1e-4]),
        }
        for _ in range(num_nodes)
    ]
    one = draw.random() < 0.5
    speeds, delays = [1e8, 1e9, 1e10], [0.0, 1e-5, 1e-3]
    bw, lat = draw.choice(speeds), draw.choice(delays)
    pairs = range(num_nodes)
    scenario: dict[str, Any] = {
        "nodes": [{"name": f"n{at}", **each} for at, each in enumerate(figures)],
        "layers": [
            {
                "fwd": draw.uniform(1e9, 8e9),
                "params": draw.choice([1e6, 5e6, 2e7]),
                "out": draw.choice([1e4, 1e6]),
                "act": draw.choice([1e6, 2e7]),
            }
            for _ in range(num_layers)
        ],
        "bw": [
            [0.0 if i == j else bw if one else draw.choice(speeds) for j in pairs] for i in pairs
        ],
        "lat": [
            [0.0 if i == j else lat if one else draw.choice(delays) for j in pairs] for i in pairs
        ],
        "global_batch": draw.choice([2, 4, 6]),
        "micro_batch_choices": draw.choice([[1], [1, 2], [2]]),
        "bucket_bytes": draw.choice([None, 1e7]),
        "zero_choices": draw.choice([[0], [0, 1]]),
        "recompute_choices": draw.choice([[False], [False, True]]),
        "schedules": draw.choice([["1f1b"], ["gpipe"], ["1f1b", "gpipe"]]),
    }
    if draw.random() < 0.3:
        scenario["overlap"] = True
        scenario["bucket_choices"] = [1e7, None]
    if draw.random() < 0.2:
        scenario["max_stages"] = draw.randint(1, num_nodes)
    return scenario
