"""`ps`, `down`, and the processes one by one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli import parts
from trainmaster.cli.health import require_free
from trainmaster.cli.session import session_of
from trainmaster.cli.settings import (
    DEFAULT_DASHBOARD_PORT,
    DEFAULT_PORT,
    Settings,
    home_at,
)
from trainmaster.errors import ConflictError, UserError
from trainmaster.home import Home, ProcessRecord
from trainmaster.ids import node_id_of

SUPERVISOR_GRACE_S = 40.0
GRACE_S = 10.0
_LOOK_S = 0.05


def process_rows(home: Home) -> list[dict[str, Any]]:
    """Return what `ps --json` prints: every part of an installation, running or not."""
    records = {record.name: record for record in home.processes()}
    nodes, clustered = parts.remembered_nodes(home)
    agents = [parts.agent_name(node.name, clustered=clustered) for node in nodes] or ["agent"]
    nests = [parts.nest_name(node.name, clustered=clustered) for node in nodes] or ["nest"]
    names = ["supervisor", "control", *agents, *nests, "dashboard"]
    names.extend(name for name in records if name not in names)
    return [_row(name, records.get(name)) for name in names]


def _row(name: str, record: ProcessRecord | None) -> dict[str, Any]:
    return {
        "name": name,
        "pid": record.pid if record is not None and record.alive else None,
        "address": record.address if record is not None else None,
        "restarts": record.restarts if record is not None else 0,
    }


def ps(
    context: typer.Context,
    home: Annotated[str | None, typer.Option(help="The state directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """List the processes of this installation; needs no control plane."""
    session = session_of(context)
    rows = process_rows(session.settings.home if home is None else home_at(home))
    if as_json:
        session.output.json(rows)
        return
    session.output.table(
        ["NAME", "PID", "ADDRESS", "RESTARTS"], [list(row.values()) for row in rows], "-"
    )


def down(
    context: typer.Context,
    home: Annotated[str | None, typer.Option(help="The state directory.")] = None,
) -> None:
    """Stop everything of this installation; also when nothing runs."""
    session = session_of(context)
    chosen = session.settings.home if home is None else home_at(home)
    stopped = stop_all(chosen, sleep=session.sleep, monotonic=session.monotonic)
    session.output.say(
        f"Stopped {', '.join(stopped)}." if stopped else f"Nothing runs from {chosen.root}."
    )


def stop_all(
    home: Home,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> list[str]:
    """End every recorded process of `home`; return the names of those that ran."""
    records = sorted(home.processes(), key=lambda record: record.name != "supervisor")
    living = [record for record in records if record.alive]
    for record, grace_s in [
        (each, SUPERVISOR_GRACE_S if each.name == "supervisor" else GRACE_S) for each in living
    ]:
        record.signal(signal.SIGTERM)
        deadline = monotonic() + grace_s
        while record.alive and monotonic() < deadline:
            sleep(_LOOK_S)
        if record.signal(signal.SIGKILL):
            while record.alive:
                sleep(_LOOK_S)
    for record in home.processes():
        if not record.alive:
            home.forget_process(record.name, record.pid)
    return [record.name for record in living]


def control(context: typer.Context) -> None:
    """Become the control plane (`python -m control serve`)."""
    settings = session_of(context).settings
    home = settings.home
    port = _port(home, "control", settings.port, DEFAULT_PORT)
    _take_place(home, "control")
    require_free(port, "TRAINMASTER_PORT")
    part = parts.control_part(home, port, os.environ)
    home.prepare()
    home.record_process("control", os.getpid(), part.address)
    parts.become(part)


def dashboard(context: typer.Context) -> None:
    """Become the dashboard."""
    settings = session_of(context).settings
    home = settings.home
    port = _port(home, "dashboard", settings.dashboard_port, DEFAULT_DASHBOARD_PORT)
    _take_place(home, "dashboard")
    require_free(port, "TRAINMASTER_DASHBOARD_PORT")
    part = parts.dashboard_part(home, port, settings.control_url, os.environ)
    home.prepare()
    home.record_process("dashboard", os.getpid(), part.address)
    parts.become(part)


def agent(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="The node's name.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, max=1024, help="Places for ranks.")] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labels and emulation of the device.")
    ] = None,
) -> None:
    """Become the agent of one node."""
    settings = session_of(context).settings
    home = settings.home
    node, clustered = _node(home, name, slots)
    _take_place(home, parts.agent_name(node.name, clustered=clustered))
    home.prepare()
    part = parts.agent_part(home, node, settings.control_url, os.environ, clustered=clustered)
    environment = dict(part.environment)
    if profile is not None:
        environment["TRAINMASTER_PROFILE"] = str(Path(profile).absolute())
    token = _agent_token(settings, node.name)
    if token is not None:
        environment["TRAINMASTER_TOKEN"] = token
        del environment["TRAINMASTER_TOKEN_FILE"]
    home.record_process(part.name, os.getpid())
    parts.become(replace(part, environment=environment))


def _agent_token(settings: Settings, node: str) -> str | None:
    """Return the token that was given; None once `home` holds one for this node.

    A home with an admin's token makes one for the node.
    """
    if settings.token is not None:
        return settings.token
    home = settings.home
    if home.token(parts.token_name(node)) is not None:
        return None
    admin = home.token()
    if admin is None:
        raise UserError(
            f"there is no token for node {node}: set TRAINMASTER_TOKEN to what "
            f"`trainmaster token create --role agent --node {node}` printed"
        )
    from trainmaster.client import Client

    with Client(settings.control_url, admin) as api:
        created = api.post("/v1/tokens", {"role": "agent", "node": node})
    home.write_token(created["token"], parts.token_name(node))
    return None


def _node(home: Home, name: str | None, slots: int | None) -> tuple[parts.Node, bool]:
    """Return the node as `up` would start it, with what was asked for here on top."""
    nodes, clustered = parts.remembered_nodes(home)
    known = {node.name: node for node in nodes}
    if name is None:
        if len(nodes) > 1:
            raise UserError(f"which node? --name is one of {', '.join(known)}")
        name = os.environ.get("TRAINMASTER_NODE_NAME") or (
            nodes[0].name if nodes else node_id_of(socket.gethostname())
        )
    if name not in known:
        return parts.Node(name, slots), clustered or bool(nodes)
    node = known[name]
    if slots is not None:
        node = parts.Node(node.name, slots, node.labels, node.emulation)
    return node, clustered


def _port(home: Home, name: str, asked: int | None, default: int) -> int:
    """Return the port that was asked for, else the one that the others of this home look for."""
    if asked is not None:
        return asked
    record = home.process(name)
    if record is not None and record.address is not None and record.address.rpartition(":")[2]:
        return int(record.address.rpartition(":")[2])
    return default


def _take_place(home: Home, name: str) -> None:
    record = home.process(name)
    if record is not None and record.alive:
        at = f" at {record.address}" if record.address else ""
        raise ConflictError(
            f"{name} of {home.root} already runs{at} (pid {record.pid}): end it first, e.g. with "
            f"`kill {record.pid}`, or name another TRAINMASTER_HOME"
        )
