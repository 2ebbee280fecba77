"""The process itself: health, version, its OpenAPI document, and what Prometheus asks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import yaml
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from control.api import sync
from control.api.answers import Answer
from control.api.context import WithShell
from control.api.door import DoorRoute
from control.api.errors import answer_error
from control.db import listings, rulebook, unreadable
from control.prometheus import promql
from control.prometheus.exporter import exposition
from control.prometheus.process_metrics import Process
from trainmaster import __version__
from trainmaster.errors import NotFoundError, UnavailableError
from trainmaster.metrics import BY_NAME, DERIVED

router = APIRouter(route_class=DoorRoute, tags=["system"])


@router.get("/healthz")
async def healthz() -> Response:
    """Answer while the process lives, also when every thread waits for a database."""
    return Answer({"status": "ok"})


@router.get("/readyz")
def readyz(shell: WithShell) -> Response:
    """Answer 200 when the database can be used and this process is to go on, else 503 with what is
    wrong and its mend.
    """
    if shell.draining.is_set():
        return answer_error(
            UnavailableError("this control plane is about to stop: ask another", code="draining")
        )
    try:
        shell.db.probe()
    except UnavailableError as error:
        return answer_error(error)
    return Answer({"status": "ready"})


@router.get("/v1/about")
def about(shell: WithShell) -> Response:
    """Tell version and time, whether this control plane leads, and what it keeps for how long."""
    return Answer(
        {
            "version": __version__,
            "now": shell.clock.now(),
            "up_since": shell.up_since,
            "leads": shell.leads(),
            "draining": shell.draining.is_set(),
            "database": shell.db.engine.dialect.name,
            "drills_allowed": shell.settings.allow_drills,
            "retention": {
                "samples_exact_days": shell.settings.samples_exact_days,
                "samples_days": shell.settings.samples_days,
                "scrub_days": shell.settings.scrub_days,
            },
        }
    )


@router.get("/v1/metrics")
def list_metrics() -> Response:
    """List the metrics that series and rules know."""
    return Answer(
        [
            {
                "name": each.name,
                "unit": each.unit,
                "scope": each.scope,
                "description": each.description,
            }
            for each in (*BY_NAME.values(), *DERIVED.values())
        ]
    )


@router.get("/v1/unreadable")
def list_unreadable(shell: WithShell) -> Response:
    """List stored values that cannot be read, and how each is mended."""
    with shell.db.read() as connection:
        return Answer([asdict(each) for each in unreadable.findings(connection)])


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """Describe this API."""
    whole = request.app.openapi()
    return Answer({**whole, "paths": sync.described(whole["paths"])})


@router.get("/metrics")
def metrics(request: Request, shell: WithShell) -> Response:
    """Tell Prometheus about runs, nodes and this process."""
    process = Process(
        up_since=shell.up_since,
        skipped=shell.skipped(),
        leads=shell.leads(),
        vitals=shell.vitals,
        syncs=asdict(shell.syncs.counts),
        syncs_waiting=shell.syncs.num_waiting,
    )
    text, content_type = exposition(
        shell.db,
        process,
        now=shell.clock.now(),
        accounts=shell.accounts,
        accept=request.headers.get("accept", ""),
    )
    return Response(text, headers={"Content-Type": content_type})


@router.get("/v1/goodput")
def fleet_goodput(shell: WithShell) -> Response:
    """Show where the wall time of the newest runs went together, and what failures cost them."""
    with shell.db.read() as connection:
        return Answer(shell.accounts.of_fleet(connection, now=shell.clock.now()))


@router.get("/v1/prometheus/targets")
def targets(shell: WithShell) -> Response:
    """List the agents' /metrics for Prometheus' HTTP service discovery."""
    with shell.db.read() as connection:
        nodes = listings.nodes(connection, now=shell.clock.now(), up_since=shell.up_since)
    return Answer(
        [
            {
                "targets": [f"{_host(node['address'])}:{node['metrics_port']}"],
                "labels": {"node": node["id"]},
            }
            for node in nodes
            if node["metrics_port"] is not None and node["state"] != "lost"
        ]
    )


@router.get("/v1/prometheus/rules")
def prometheus_rules(
    shell: WithShell, pack: Annotated[str, Query(max_length=200)] = rulebook.DEFAULT_PACK
) -> Response:
    """Give the rules of a pack as a rule file for Prometheus; what cannot be said there is named in
    its head.
    """
    with shell.db.read() as connection:
        if rulebook.unknown(connection, pack):
            raise NotFoundError(f"there is no pack of rules named {pack!r}, and no such rule")
        found = promql.export(rulebook.active(connection, pack))
    head = ["# Made from the rules of Trainmaster (docs/prometheus.md); edit them there."]
    head += [f"# Left out: {json.dumps(name)}: {why}." for name, why in found.left_out]
    text = yaml.safe_dump({"groups": found.groups}, allow_unicode=True, sort_keys=False, width=120)
    return Response("\n".join([*head, text]), media_type="application/yaml")


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address
