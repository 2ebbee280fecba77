"""Reads a scenario from plain values, and tells everything that is wrong with it at once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from control.planner.scenario import (
    MAX_LAYERS,
    MAX_NODES,
    Floats,
    Layers,
    NodeKind,
    Scenario,
    with_nodes,
)
from trainmaster.errors import Problem, SpecError

MAX_MICRO_BATCHES = 1_000_000
RCM_SCHEDULES = ("1f1b", "gpipe")


class Reader:
    """Reads values out of a mapping, and collects what is wrong with them."""

    def __init__(self, value: Mapping[str, Any], where: str = "") -> None:
        self._value = value
        self._where = where
        self.problems: list[Problem] = []
        self.read: set[str] = set()

    def path(self, key: str) -> str:
        """Return where `key` stands."""
        return f"{self._where}.{key}" if self._where else key

    def wrong(self, key: str, message: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(self.path(key), message))

    def number(
        self, key: str, default: float | None = None, *, zero: bool = False, below: float = 1e30
    ) -> float:
        """Return a finite number above 0 (or at least 0)."""
        self.read.add(key)
        value = self._value.get(key, default)
        if value is None:
            self.wrong(key, "is needed")
            return 1.0
        problem = number_problem(value, zero=zero, below=below)
        if problem is not None:
            self.wrong(key, problem)
            return 1.0
        return float(value)

    def whole(self, key: str, default: int | None = None, *, most: int = 1 << 40) -> int:
        """Return a whole number from 1 on."""
        value = self.number(key, default)
        if value != int(value) or not 1 <= value <= most:
            self.wrong(key, f"must be a whole number from 1 to {most}, not {value:g}")
            return 1
        return int(value)

    def choices(self, key: str, default: Sequence[Any]) -> list[Any]:
        """Return a list that is not empty, without doubles."""
        self.read.add(key)
        value = self._value.get(key, list(default))
        if not isinstance(value, list) or not value:
            self.wrong(key, "must be a list with at least one choice")
            return list(default)
        return [each for at, each in enumerate(value) if each not in value[:at]]


def number_problem(value: object, *, zero: bool = False, below: float = 1e30) -> str | None:
    """Return what is wrong with a figure, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {value!r:.60}"
    if not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if value < 0 or (value == 0 and not zero):
        return f"must be {'at least' if zero else 'above'} 0, not {value:g}"
    if value >= below:
        return f"must be below {below:g}, not {value:g}"
    return None


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
    names, figures = _nodes(given, reader)
    layers = _layers(given, reader)
    bw, lat = _links(given, reader, names)
    scenario = _choices(given, reader, layers)
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


def _nodes(given: Mapping[str, Any], reader: Reader) -> tuple[list[str], list[NodeKind]]:
    reader.read |= {"nodes", "node_counts", "node_types"}
    if "node_counts" in given:
        return _counted_nodes(given, reader)
    nodes = given.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        reader.wrong("nodes", "must be a list of at least one node")
        return [], []
    if len(nodes) > MAX_NODES:
        reader.wrong("nodes", f"has {len(nodes)} nodes; at most {MAX_NODES} are planned for")
        return [], []
    names: dict[str, int] = {}
    figures = []
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
    return list(names), figures


def _kind(node: Mapping[str, Any], where: str, name: str, reader: Reader) -> NodeKind:
    inner = Reader(node, where)
    kind = NodeKind(
        name, inner.number("flops"), inner.number("mem"), inner.number("t0", 0.0, zero=True)
    )
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


def _layers(given: Mapping[str, Any], reader: Reader) -> Layers:
    reader.read.add("layers")
    entries = _layer_entries(given.get("layers"), reader)
    columns: dict[str, list[float]] = {"fwd": [], "params": [], "out": [], "act": []}
    seen: dict[int, tuple[float, ...]] = {}  # of `96 x {...}`, one entry is checked once
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            reader.wrong(f"layers[{index}]", "must be a mapping with fwd, params, out and act")
            continue
        if id(entry) not in seen:
            inner = Reader(entry, f"layers[{index}]")
            seen[id(entry)] = tuple(inner.number(key, zero=key != "fwd") for key in columns)
            reader.problems += inner.problems
        for column, value in zip(columns.values(), seen[id(entry)], strict=True):
            column.append(value)
    return Layers(*(np.array(column) for column in columns.values()))


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
    matrix = np.array(value, dtype=float)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _choices(given: Mapping[str, Any], reader: Reader, layers: Layers) -> Scenario:
    batch = reader.whole("global_batch")
    micro = reader.choices("micro_batch_choices", [1])
    schedules = reader.choices("schedule_choices", reader.choices("schedules", ["1f1b"]))
    zeros = reader.choices("zero_choices", [0])
    recomputes = reader.choices("recompute_choices", [False])
    reader.read.add("bucket_bytes")
    buckets = reader.choices("bucket_choices", [given.get("bucket_bytes")])
    reader.read.add("overlap")
    overlap = given.get("overlap", False)
    if not isinstance(overlap, bool):
        reader.wrong("overlap", f"must be true or false, not {overlap!r:.60}")
    for key, wrong, message in (
        ("micro_batch_choices", [b for b in micro if not _is_whole(b)], "a whole number from 1 on"),
        ("schedules", [s for s in schedules if s not in RCM_SCHEDULES], "1f1b or gpipe"),
        ("zero_choices", [z for z in zeros if z not in (0, 1) or z is True], "0 or 1"),
        ("recompute_choices", [r for r in recomputes if not isinstance(r, bool)], "true or false"),
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
        recomputes=tuple(recomputes),
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


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
