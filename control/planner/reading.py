"""Reads a scenario from plain values, and tells everything that is wrong with it at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from control.planner.aims import read_aims, refuse_untold
from control.planner.reader import Reader, number_problem
from control.planner.scenario import (
    MAX_LAYERS,
    MAX_NODES,
    Floats,
    Layers,
    NodeKind,
    Scenario,
    with_nodes,
)
from trainmaster.cells import Recompute
from trainmaster.errors import Problem, SpecError
from trainmaster.schedules import KNOWN

MAX_MICRO_BATCHES = 1_000_000


def read_scenario(given: object) -> Scenario:
    """Return the scenario in plain values: with one entry per node and a matrix of links, or with
    counts of node types and one link figure.

    Raises:
        SpecError: everything that is wrong, each with its path.
    """
    if isinstance(given, Mapping) and isinstance(given.get("scenario"), Mapping):
        given = given["scenario"]
    if not isinstance(given, Mapping):
        raise SpecError([Problem("", "must be a mapping of keys to values")])
    reader = Reader(given)
    names, figures, hosts = _nodes(given, reader)
    layers, split = _layers(given, reader)
    bw, lat = _links(given, reader, names)
    scenario = _choices(given, reader, layers).replaced(hosts=hosts, split=split)
    scenario = read_aims(given, reader, scenario, len(names))
    refuse_untold(reader, scenario, figures)
    unknown = sorted(set(map(str, given)) - reader.read - _TOLD)
    if reader.problems:
        raise SpecError(reader.problems[:50])
    warnings = [f"{key} is not known here and was left out of account" for key in unknown]
    return with_nodes(scenario.replaced(warnings=tuple(warnings)), names, figures, bw, lat)


_TOLD = frozenset(
    [
        "id",
        "title",
        "release",
        "why",
        "name",
        "baseline_RS",
        "time_limit_s",
        "work_lower_bound_s",
        "reference_step_time_s",
        "reference_gap",
        "reference_plan_summary",
        "reference_cpu_seconds_python",
        "doc",
        "cost_model",
    ]
)
"""Keys that tell of a scenario and belong to no problem."""


Nodes = tuple[list[str], list[NodeKind], tuple[str, ...]]
"""Their names, figures and machines; no machines where each is one of its own."""


def _nodes(given: Mapping[str, Any], reader: Reader) -> Nodes:
    reader.read |= {"nodes", "node_counts", "node_types"}
    if "node_counts" in given:
        return (*_counted_nodes(given, reader), ())
    nodes = given.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        reader.wrong("nodes", "must be a list of at least one node")
        return [], [], ()
    if len(nodes) > MAX_NODES:
        reader.wrong("nodes", f"has {len(nodes)} nodes; at most {MAX_NODES} are planned for")
        return [], [], ()
    names: dict[str, int] = {}
    figures, hosts = [], []
    for index, node in enumerate(nodes):
        where = f"nodes[{index}]"
        if not isinstance(node, Mapping):
            reader.wrong(where, "must be a mapping with name, flops and mem")
            continue
        name = str(node.get("name", node.get("id", f"node-{index}")))
        if name in names:
            reader.wrong(f"{where}.name", f"{name!r} is the name of nodes[{names[name]}] already")
        names[name] = index
        figures.append(_kind(node, where, str(node.get("type", "node")), reader))
        hosts.append(str(node.get("host", f"machine of {name}")))
    return list(names), figures, tuple(hosts)


_WHERE_TOLD = ("host_mem", "memory_bw", "host_bw", "host_link_bw", "mtbf_s", "price")
"""Figures of a node without which nothing is made of them."""


def _kind(node: Mapping[str, Any], where: str, name: str, reader: Reader) -> NodeKind:
    inner = Reader(node, where)
    kind = NodeKind(
        name, inner.number("flops"), inner.number("mem"), inner.number("t0", 0.0, zero=True)
    )
    more: dict[str, Any] = {key: inner.number(key) for key in _WHERE_TOLD if key in node}
    if "overlap_slowdown" in node:
        more["overlap_slowdown"] = inner.number("overlap_slowdown")
        if more["overlap_slowdown"] < 1:
            inner.wrong("overlap_slowdown", "must be at least 1: sums make no compute faster")
    kind = replace(kind, **more)
    reader.problems += inner.problems
    return kind


def _counted_nodes(given: Mapping[str, Any], reader: Reader) -> tuple[list[str], list[NodeKind]]:
    counts, types = given["node_counts"], given.get("node_types")
    if not isinstance(counts, Mapping) or not counts:
        reader.wrong("node_counts", "must map node types to numbers")
        return [], []
    if not isinstance(types, Mapping):
        reader.wrong("node_types", "must map each type in node_counts to its figures")
        return [], []
    names: list[str] = []
    figures: list[NodeKind] = []
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            reader.wrong(f"node_counts.{name}", f"must be a whole number, not {count!r:.60}")
        elif not isinstance(types.get(name), Mapping):
            reader.wrong(f"node_types.{name}", "is needed")
        elif len(names) + count > MAX_NODES:
            reader.wrong(f"node_counts.{name}", f"makes more than {MAX_NODES} nodes")
        else:
            kind = _kind(types[name], f"node_types.{name}", str(name), reader)
            names += [f"{name}-{len(names) + each}" for each in range(count)]
            figures += [kind] * count
    if not names and not reader.problems:
        reader.wrong("node_counts", "has no node")
    return names, figures


def _layers(given: Mapping[str, Any], reader: Reader) -> tuple[Layers, tuple[float, ...]]:
    """Return the layers, and of each the share that nodes can divide."""
    reader.read |= {"layers", "selective_again"}
    entries = _layer_entries(given.get("layers"), reader)
    columns: dict[str, list[float]] = {"fwd": [], "params": [], "out": [], "act": []}
    optional: dict[str, list[float]] = {"act_selective": [], "split": []}
    seen: dict[int, tuple[float, ...]] = {}  # of `96 x {...}`, one entry is checked once
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            reader.wrong(f"layers[{index}]", "must be a mapping with fwd, params, out and act")
            continue
        if id(entry) not in seen:
            inner = Reader(entry, f"layers[{index}]")
            seen[id(entry)] = tuple(inner.number(key, zero=key != "fwd") for key in columns)
            for key in optional:
                if key in entry:
                    inner.number(key, zero=True, below=1e30 if key != "split" else 1.0 + 1e-9)
            reader.problems += inner.problems
        for column, value in zip(columns.values(), seen[id(entry)], strict=True):
            column.append(value)
        optional["act_selective"].append(entry.get("act_selective", entry.get("act", 0.0)))
        optional["split"].append(entry.get("split", 1.0))
    fwd, params, out, act = (np.array(column) for column in columns.values())
    layers = Layers(fwd, params, out, act)
    if reader.problems:
        return layers, ()
    if any("act_selective" in each for each in entries):
        layers = replace(
            layers,
            act_selective=np.array(optional["act_selective"], dtype=float),
            again=reader.number("selective_again", 0.05, zero=True, below=1.0 + 1e-9),
        )
    return layers, tuple(map(float, optional["split"]))


def _layer_entries(value: object, reader: Reader) -> list[Any]:
    entries: list[Any] = value if isinstance(value, list) else []
    if isinstance(value, str):
        count, _, text = value.partition("x")
        try:
            entry = json.loads(text)
            entries = [entry] * int(count) if int(count) <= MAX_LAYERS else [None] * MAX_LAYERS * 2
        except ValueError:
            reader.wrong("layers", 'must be a list, or text like `96 x {"fwd": ...}`')
            return []
    if not entries:
        reader.wrong("layers", "must be a list of at least one layer")
    if len(entries) > MAX_LAYERS:
        reader.wrong("layers", f"are more than {MAX_LAYERS}")
        return []
    return entries


def _links(
    given: Mapping[str, Any], reader: Reader, names: Sequence[str]
) -> tuple[Floats, Floats] | tuple[float, float]:
    reader.read |= {"bw", "lat", "link"}
    if isinstance(given.get("link"), Mapping):
        inner = Reader(given["link"], "link")
        one = inner.number("bw"), inner.number("lat", 0.0, zero=True)
        reader.problems += inner.problems
        return one
    if len(names) == 1 and "bw" not in given:
        return 1.0, 0.0
    bw = _matrix(given.get("bw"), "bw", reader, names)
    lat = _matrix(given.get("lat"), "lat", reader, names)
    return bw, lat


def _matrix(value: object, key: str, reader: Reader, names: Sequence[str]) -> Floats:
    """Return a square of figures with one row per node; 0 bytes/s says that there is no link."""
    size = len(names)
    fallback = np.ones((size, size))
    if value is None:
        reader.wrong(key, "is needed: a matrix with a row per node, or `link` for all pairs")
        return fallback
    if not isinstance(value, list) or len(value) != size:
        given = len(value) if isinstance(value, list) else "none"
        reader.wrong(key, f"must have a row for each of the {size} nodes, not {given}")
        return fallback
    for row, figures in enumerate(value):
        if not isinstance(figures, list) or len(figures) != size:
            reader.wrong(f"{key}[{row}]", f"must have a figure for each of the {size} nodes")
            return fallback
        for column, figure in enumerate(figures):
            problem = None if row == column else number_problem(figure, zero=True)
            if problem is not None:
                reader.wrong(
                    f"{key}[{row}][{column}]", f"({names[row]} to {names[column]}) {problem}"
                )
                return fallback
    return np.array(
        [
            [0.0 if row == at else one for at, one in enumerate(each)]
            for row, each in enumerate(value)
        ]
    )


def _choices(given: Mapping[str, Any], reader: Reader, layers: Layers) -> Scenario:
    batch = reader.whole("global_batch")
    micro = reader.choices("micro_batch_choices", [1])
    schedules = reader.choices("schedule_choices", reader.choices("schedules", ["1f1b"]))
    zeros = reader.choices("zero_choices", [0])
    recomputes = reader.choices("recompute_choices", [False])
    offloads = reader.choices("offload_choices", [False])
    tensors = reader.choices("tensor_choices", [1])
    reader.read.add("bucket_bytes")
    buckets = reader.choices("bucket_choices", [given.get("bucket_bytes")])
    reader.read.add("overlap")
    overlap = given.get("overlap", False)
    if not isinstance(overlap, bool):
        reader.wrong("overlap", f"must be true or false, not {overlap!r:.60}")
    for key, wrong, message in (
        ("micro_batch_choices", [b for b in micro if not _is_whole(b)], "a whole number from 1 on"),
        ("schedules", [s for s in schedules if s not in [*KNOWN]], " or ".join(KNOWN)),
        ("zero_choices", [z for z in zeros if not _is_whole(z, least=0) or z > 3], "0 to 3"),
        (
            "recompute_choices",
            [r for r in recomputes if not isinstance(r, bool | str) or r not in _RECOMPUTES],
            'true, false or "selective"',
        ),
        ("offload_choices", [o for o in offloads if not isinstance(o, bool)], "true or false"),
        ("tensor_choices", [t for t in tensors if not _is_whole(t)], "a whole number from 1 on"),
        (
            "bucket_choices" if "bucket_choices" in given else "bucket_bytes",
            [k for k in buckets if k is not None and number_problem(k) is not None],
            "bytes above 0, or null for one bucket",
        ),
    ):
        if wrong:
            reader.wrong(key, f"{wrong[0]!r:.60} must be {message}")
    dividing = tuple(b for b in micro if _is_whole(b) and batch % b == 0)
    fitting = tuple(b for b in dividing if batch // b <= MAX_MICRO_BATCHES)
    if dividing and not fitting:
        reader.wrong("global_batch", f"makes more than {MAX_MICRO_BATCHES} micro-batches")
    if not fitting and not reader.problems:
        reader.wrong(
            "global_batch",
            f"{batch} samples are not divisible by any of micro_batch_choices "
            f"({', '.join(map(str, micro))})",
        )
    least, most = reader.whole("min_replicas", 1), reader.whole("max_replicas", MAX_NODES)
    if least > most:
        reader.wrong("min_replicas", f"{least} is above max_replicas, which is {most}")
    for fixed in ("fixed", "fixed_bytes", "fixed_mem"):
        reader.read.add(fixed)
    return Scenario(
        names=(),
        kinds=(),
        kind_of=(),
        members=(),
        bw=np.zeros((0, 0)),
        lat=np.zeros((0, 0)),
        layers=layers,
        global_batch=batch,
        micro_batches=fitting or (1,),
        schedules=tuple(schedules),
        zeros=tuple(zeros),
        recomputes=tuple(
            _RECOMPUTES.get(each, "none") for each in recomputes if isinstance(each, bool | str)
        ),
        offloads=tuple(offloads),
        tensors=tuple(sorted(each for each in tensors if _is_whole(each))) or (1,),
        buckets=tuple(buckets),
        overlap=overlap is True,
        max_stages=reader.whole("max_stages", MAX_LAYERS),
        max_replicas=most,
        min_replicas=least,
        bwd_mult=reader.number("bwd_mult", 2.0),
        grad_bytes=reader.number("grad_bytes", 2.0),
        time_limit_s=reader.number("time_limit_s") if "time_limit_s" in given else None,
        input_bytes=reader.number("input_bytes", 0.0, zero=True),
        fixed=next(
            (
                reader.number(key, zero=True)
                for key in ("fixed", "fixed_bytes", "fixed_mem")
                if key in given
            ),
            0.0,
        ),
    )


_RECOMPUTES: dict[object, Recompute] = {
    False: "none",
    True: "full",
    "none": "none",
    "selective": "selective",
    "full": "full",
}


def _is_whole(value: object, *, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
