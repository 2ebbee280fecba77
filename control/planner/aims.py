"""Reads what a plan is for: what is to be best, and under what it is to hold up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from control.planner.doubt import MOST_NODES, Doubt
from control.planner.reader import Reader
from control.planner.scenario import NodeKind, Scenario

OBJECTIVES = ("goodput", "price", "step_time")


def read_aims(
    given: Mapping[str, Any], reader: Reader, scenario: Scenario, num_nodes: int
) -> Scenario:
    """Return the scenario with what is to be best, and under what a plan is to hold up."""
    return _objective(given, reader, scenario).replaced(
        doubt=_doubt(given, reader, num_nodes),
        domains=_domains(given, reader, scenario.tensors),
    )


def _objective(given: Mapping[str, Any], reader: Reader, scenario: Scenario) -> Scenario:
    """Return the scenario with what is to be best, and what checkpoints and restarts take."""
    reader.read |= {"objective", "stall_s", "write_s", "restart_s"}
    objective = given.get("objective", "step_time")
    if objective not in OBJECTIVES:
        reader.wrong("objective", f"{objective!r:.60} must be one of {', '.join(OBJECTIVES)}")
        return scenario
    if objective == "step_time":
        return scenario
    return scenario.replaced(
        objective=objective,
        **{key: reader.number(key, 0.0, zero=True) for key in ("stall_s", "write_s", "restart_s")},
    )


def _domains(given: Mapping[str, Any], reader: Reader, tensors: Sequence[int]) -> tuple[str, ...]:
    """Return each node's failure domain, where copies of a layer are to lie in different ones."""
    reader.read.add("separate_domains")
    asked, nodes = given.get("separate_domains", False), given.get("nodes")
    if not isinstance(asked, bool):
        reader.wrong("separate_domains", f"must be true or false, not {asked!r:.60}")
        return ()
    if not asked or not isinstance(nodes, list):
        if asked:
            reader.wrong("separate_domains", "needs nodes, each with its domain")
        return ()
    if max(tensors) > 1:
        reader.wrong("separate_domains", "is not for places of several nodes: tensor_choices [1]")
    for index, node in enumerate(nodes):
        if isinstance(node, Mapping) and "domain" not in node:
            reader.wrong(f"nodes[{index}].domain", "is needed for separate_domains")
    return tuple(str(each.get("domain")) for each in nodes if isinstance(each, Mapping))


def _doubt(given: Mapping[str, Any], reader: Reader, num_nodes: int) -> Doubt | None:
    """Return how far figures may be off, where a plan is to hold up then."""
    reader.read.add("robust")
    asked = given.get("robust")
    if asked is None:
        return None
    if not isinstance(asked, Mapping):
        reader.wrong("robust", "must be a mapping with sigma, and samples if not 16")
        return None
    inner = Reader(asked, "robust")
    doubt = Doubt(inner.number("sigma", below=1.0), inner.whole("samples", 16, most=256))
    for key in sorted(set(map(str, asked)) - inner.read):
        inner.wrong(key, "is not known: sigma, samples")
    reader.problems += inner.problems
    if num_nodes > MOST_NODES:
        reader.wrong("robust", f"is for at most {MOST_NODES} nodes, not {num_nodes}")
    return doubt


def refuse_untold(reader: Reader, scenario: Scenario, figures: Sequence[NodeKind]) -> None:
    """Refuse an objective whose figures are not told."""
    if scenario.objective == "price" and not any(each.price for each in figures):
        reader.wrong("objective", "price needs a price of nodes")
    if scenario.objective == "goodput" and all(each.mtbf_s == np.inf for each in figures):
        reader.wrong("objective", "goodput needs mtbf_s of nodes")
    if scenario.objective and scenario.stall_s == 0 and any(f.mtbf_s < np.inf for f in figures):
        reader.wrong("stall_s", "is needed: the seconds for which a checkpoint stops all nodes")
