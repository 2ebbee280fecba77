"""The planner: what would be the best plan, and why. Stores nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from fastapi import APIRouter
from pydantic import model_validator
from starlette.responses import Response

from control.api.answers import Answer
from control.api.context import Shell, WithShell
from control.api.door import DoorRoute
from control.api.submission import described, parsed
from control.db import listings
from control.db.fleet.nodes import device_kind
from control.planner import automatic, fleet
from control.planner.answer import answer, asked_for, told
from control.planner.machine import Machine, ablest, machine_of, stated_link
from control.planner.search import search
from trainmaster import document
from trainmaster.calibration import workload_key
from trainmaster.cluster import Cluster
from trainmaster.document import Document
from trainmaster.errors import SpecError, UnavailableError
from trainmaster.plan import Strict
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo

router = APIRouter(prefix="/v1/plan", route_class=DoorRoute, tags=["plan"])

LIMIT_S = 20.0
"""For a search; it then answers with the best plan so far."""

_SEATS = threading.Semaphore(2)
"""A search computes all the time, and turns of runs must go on beside it."""


class PlanBody(Strict):
    """A scenario; or a spec, with the nodes of a cluster file instead of those connected."""

    scenario: dict[str, Any] | None = None
    spec: dict[str, Any] | str | None = None
    cluster: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.scenario is None) == (self.spec is None):
            raise ValueError("give either scenario or spec")
        if self.cluster is not None and self.spec is None:
            raise ValueError("cluster goes with spec")
        return self


@router.post("")
def ask_plan(body: PlanBody, shell: WithShell) -> Response:
    """Plan for a scenario, or for a spec."""
    if not _SEATS.acquire(blocking=False):
        raise UnavailableError("two plans are being sought already: try again")
    try:
        if body.scenario is not None:
            return Answer(answer(body.scenario, clock=time.perf_counter, limit_s=LIMIT_S))
        return Answer(_for_spec(shell, body))
    finally:
        _SEATS.release()


def _for_spec(shell: Shell, body: PlanBody) -> dict[str, Any]:
    assert body.spec is not None
    spec, source = parsed(body.spec)
    given = None if body.cluster is None else _given(body.cluster)
    try:
        workload = described(shell, spec)
        if workload is None:
            raise UnavailableError(
                "no node is connected that could describe the workload: start an agent",
                code="no_node",
            )
        key = workload_key(spec.workload, spec.params, workload.code_sha256)
        machines = _connected(shell, spec, key) if given is None else given
        if spec.parallel == "auto":
            machines = ablest(machines, spec.reach.nodes)
        return _told(machines, spec, workload)
    except SpecError as error:
        raise document.with_lines(error, source) from error


def _told(machines: list[Machine], spec: RunSpec, workload: WorkloadInfo) -> dict[str, Any]:
    started = time.perf_counter()
    scenario = fleet.fleet_scenario(machines, spec, workload)
    plan = fleet.asked(spec, workload)
    if plan is not None:
        found = asked_for(scenario, plan)
    else:
        found = search(scenario, stop=lambda: time.perf_counter() - started > LIMIT_S)
        plan = fleet.runnable(found, spec, workload)
    document_ = told(found, time.perf_counter() - started)
    if spec.parallel == "auto" and not automatic.is_sought(machines):
        document_["warnings"].append(
            "a run would not get this plan but equal replicas of the whole model: its nodes are "
            f"not known to differ (calibrate them), or have more than {automatic.MAX_SLOTS} slots"
        )
    return {**document_, "plan": plan.model_dump(mode="json")}


def _given(cluster: Mapping[str, Any]) -> list[Machine]:
    given = document.validate(Cluster, Document(dict(cluster)))
    links: dict[str, dict[str, tuple[float, float | None]]] = {}
    for link in given.links:
        links.setdefault(link.from_, {})[link.to] = stated_link(link.latency_ms, link.mbps)
    return [
        Machine(
            node.name,
            node.slots,
            node.emulate.speed,
            node.emulate.layer_time_s,
            node.emulate.memory_bytes,
            links.get(node.name, {}),
            device=node.emulate.kind or "cpu",
        )
        for node in given.nodes
    ]


def _connected(shell: Shell, spec: RunSpec, key: str) -> list[Machine]:
    """Return the nodes that could take ranks of the spec, with what they say of themselves."""
    with shell.db.read() as connection:
        rows = listings.nodes(connection, now=shell.clock.now(), up_since=shell.up_since)
    wanted = spec.placement.labels
    return [
        _machine(row, spec.train.precision, key)
        for row in rows
        if row["state"] != "lost"
        and not row["cordoned"]
        and row["slots"]
        and all(row["labels"].get(key) == value for key, value in wanted.items())
    ]


def _machine(row: Mapping[str, Any], precision: str, key: str) -> Machine:
    memory = min((int(each["memory_bytes"]) for each in row.get("devices") or []), default=0)
    return machine_of(
        row["id"],
        row["slots"],
        row.get("profile") or {},
        memory or None,
        precision=precision,
        device=device_kind(row.get("devices") or []),
        workload=key,
    )
