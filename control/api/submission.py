"""A spec that is to become a run: parsed, described by a node, resolved to a plan, and refused with
every problem at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select

from control.api.context import Shell
from control.db import rulebook, tables
from control.db.fleet import chores
from control.db.fleet import nodes as fleet
from control.liveness.leases import may_take_ranks
from control.planner import automatic
from control.rules import packs
from control.scheduler import emptied, fits, labelled
from control.snapshot import Node
from trainmaster import bands, document
from trainmaster.document import Document
from trainmaster.errors import Problem, SpecError, UnavailableError
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve, short_dataset, workload_problems
from trainmaster.spec import PlacementSpec, RunSpec
from trainmaster.wire import WorkloadInfo

_LOOK_S = 0.05


def parsed(given: dict[str, Any] | str) -> tuple[RunSpec, Document]:
    """Return the spec in a mapping or a YAML text, and where its values stand.

    Raises:
        SpecError: all its problems.
    """
    source = document.read(given) if isinstance(given, str) else Document(given)
    return document.validate(RunSpec, source), source


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec that can run here, as far as that can be known.

    Attributes:
        bands_left: what its plan may cost (`trainmaster.bands`), where it spells one out and the
            workload is known.
    """

    spec: RunSpec
    bands_left: list[str]


def checked(shell: Shell, given: dict[str, Any] | str) -> Checked:
    """Return a spec that can run here as far as that can be known: its workload is described if any
    node is connected.

    Raises:
        SpecError: what is wrong with it, all that one look can find.
        UnavailableError: a node was asked to describe the workload and has not answered.
    """
    spec, source = parsed(given)
    bands_left: list[str] = []
    try:
        with shell.db.read() as connection:
            unknown = rulebook.unknown(connection, spec.rules)
        if unknown:
            raise SpecError(
                [Problem("rules", f"there is no rule or pack named {name!r}") for name in unknown]
            )
        conflict = _conflict(shell, spec)
        if conflict is not None:
            raise SpecError([conflict])
        info = described(shell, spec)
        if info is not None:
            bands_left = _described_fits(shell, spec, info)
    except SpecError as error:
        raise document.with_lines(error, source) from error
    return Checked(spec, bands_left)


def _conflict(shell: Shell, spec: RunSpec) -> Problem | None:
    """Return which rule could never do what somebody has it there for.

    Of the rules that come along nobody has asked for anything: `placement.min_nodes` holds, and one
    that would go below it says so when it fires.
    """
    if spec.placement.min_nodes < 2:
        return None
    came_along = {rule.name for rule in packs.load("default")} if spec.rules == "default" else set()
    with shell.db.read() as connection:
        rules = rulebook.active(connection, spec.rules)
    for rule in rules:
        acts = rule.enabled and rule.mode != "observe" and rule.name not in came_along
        if acts and any(action.action == "degrade" for action in rule.actions):
            return Problem(
                "placement.min_nodes",
                f"{spec.placement.min_nodes} forbids what the rule {rule.name!r} does, which is to "
                "go on with a single node: use 1, or rules without the action degrade",
            )
    return None


def resolved(shell: Shell, ask: ParallelAsk, spec: RunSpec, info: WorkloadInfo) -> Plan:
    """Return the plan that `ask` describes for this spec and workload.

    Raises:
        SpecError: it does not fit the model, the batch, or the nodes that are known.
    """
    plan = resolve(ask, num_layers=info.num_layers, global_batch=spec.train.global_batch)
    problems = workload_problems(
        plan, tensor_units=info.tensor_units, brings_optimizer=info.brings_optimizer
    )
    problems += filter(None, [unplaceable(shell, plan, spec.reach)])
    if problems:
        raise SpecError(problems)
    return plan


def _described_fits(shell: Shell, spec: RunSpec, info: WorkloadInfo) -> list[str]:
    """See that a spec fits its workload and the nodes; return the bands that its plan leaves.

    Raises:
        SpecError: it does not.
    """
    too_short = short_dataset(info.num_samples, spec.train.global_batch)
    if too_short is not None:
        raise SpecError([too_short])
    if spec.parallel == "auto":
        _see_a_plan(shell, spec, info)
        return []
    plan = resolved(shell, spec.parallel, spec, info)
    return bands.left(plan, global_batch=spec.train.global_batch)


def _see_a_plan(shell: Shell, spec: RunSpec, info: WorkloadInfo) -> None:
    """See that the nodes present would have a plan for the spec if they were empty.

    Raises:
        SpecError: they have none, or no node has the labels that are asked for.
    """
    nodes = _nodes(shell)
    problem = labelled(spec.placement, nodes)
    if problem is not None:
        raise SpecError([problem])
    rooms = emptied(spec.reach, nodes, now=shell.clock.now())
    if not rooms:
        return
    try:
        automatic.choose(spec, info, rooms)
    except SpecError as error:
        problems = [replace(each, path="parallel") for each in error.problems]
        raise SpecError(problems) from error


def unplaceable(shell: Shell, plan: Plan, placement: PlacementSpec) -> Problem | None:
    """Return why no nodes that are known could take `plan` even if they were empty."""
    return fits(plan, placement, _nodes(shell))


def described(shell: Shell, spec: RunSpec) -> WorkloadInfo | None:
    """Return what a node says of the spec's workload; None when no node is connected.

    Raises:
        SpecError: what is wrong with the workload, its params or its data.
        UnavailableError: the node that was asked has not answered in time.
    """
    if not any(may_take_ranks(node, now=shell.clock.now()) for node in _nodes(shell)):
        return None
    if not shell.waiting.acquire(blocking=False):
        raise UnavailableError("too many submissions wait for a node just now: try again")
    try:
        return _ask_a_node(shell, spec)
    finally:
        shell.waiting.release()


def _ask_a_node(shell: Shell, spec: RunSpec) -> WorkloadInfo:
    args = chores.workload_args(spec.workload, spec.params, spec.data.source)
    with shell.db.write() as connection:
        chore = chores.ask(connection, "describe", args, now=shell.clock.now())
    deadline = time.monotonic() + shell.settings.describe_limit_s
    c = tables.chores.c
    while time.monotonic() < deadline:
        with shell.db.read() as connection:
            row = connection.execute(select(c.state, c.result).where(c.id == chore)).one()
            if row.state == chores.DONE:
                return _conclusion(chores.known_workload(connection, args))
        if shell.draining.wait(_LOOK_S):
            raise UnavailableError(
                "this control plane is about to stop, and nothing was submitted: ask another",
                code="draining",
            )
    raise UnavailableError(
        f"no node has described the workload {spec.workload} within "
        f"{shell.settings.describe_limit_s:.0f} s; "
        "look at the agents' logs, then submit again"
    )


def _conclusion(known: chores.Known) -> WorkloadInfo:
    if known.info is None:
        raise SpecError(
            [
                Problem(each["path"] or "workload", each["message"], each.get("line"))
                for each in known.problems
            ]
        )
    return known.info


def _nodes(shell: Shell) -> tuple[Node, ...]:
    with shell.db.read() as connection:
        return fleet.read(connection, None, shell.clock.now())
