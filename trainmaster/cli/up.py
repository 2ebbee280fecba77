"""`trainmaster up`: a whole installation on one machine, under one parent."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli import health, parts
from trainmaster.cli.bringup import Installation, Interrupted, require_home, stored_token
from trainmaster.cli.demo import ensure_demo
from trainmaster.cli.detached import detach
from trainmaster.cli.keeping import INTERRUPTED, connect, keeping
from trainmaster.cli.processes import process_rows
from trainmaster.cli.session import Api, Session, session_of
from trainmaster.cli.settings import DEFAULT_DASHBOARD_PORT, DEFAULT_PORT, home_at
from trainmaster.errors import ConflictError, TrainmasterError
from trainmaster.home import Home

MOST_AGENTS = 256
"""On one machine."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a person wants `up` to do beside bringing things up."""

    demo: bool
    as_json: bool


def up(
    context: typer.Context,
    demo: Annotated[
        bool, typer.Option("--demo", help="Submit the example run and follow it.")
    ] = False,
    no_dashboard: Annotated[
        bool, typer.Option("--no-dashboard", help="Start no dashboard.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Of the control plane; 0: a free one.")
    ] = None,
    dashboard_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Of the dashboard; 0: a free one.")
    ] = None,
    home: Annotated[str | None, typer.Option(help="The state directory.")] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Places for ranks on this machine.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="FILE", help="One agent per node of this file.")
    ] = None,
    in_background: Annotated[
        bool, typer.Option("--detach", help="Return when all parts are healthy.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what `ps --json` prints.")] = False,
) -> None:
    """Start control plane, agent and dashboard on this machine, and keep them running."""
    session = session_of(context)
    chosen = session.settings.home if home is None else home_at(home)
    nodes = _nodes(chosen, slots, cluster)
    require_home(chosen)
    choice = _Choice(demo, as_json)
    with _only_supervisor(chosen) as lock:
        if lock is None:
            _greet_again(session, chosen, choice)
            return
        ports = _ports(session, port, dashboard_port, no_dashboard=no_dashboard)
        wanted = Installation(chosen, *ports, nodes, clustered=cluster is not None)
        _require_dead(chosen, wanted)
        if in_background:
            status = _detached(session, wanted, choice)
        else:
            status = _foreground(session, wanted, choice)
    raise typer.Exit(status)


def _nodes(home: Home, slots: int | None, cluster: str | None) -> list[parts.Node]:
    if cluster is None:
        return parts.single_node(home, slots)
    from trainmaster.cli.cluster import read_cluster

    if slots is not None:
        raise typer.BadParameter("give either --slots or --cluster, whose nodes have their own")
    found = read_cluster(cluster)
    if len(found.nodes) > MOST_AGENTS:
        raise typer.BadParameter(
            f"{cluster} has {len(found.nodes)} nodes: at most {MOST_AGENTS} agents are started here"
        )
    return parts.cluster_nodes(found)


def _ports(
    session: Session, port: int | None, dashboard_port: int | None, *, no_dashboard: bool
) -> tuple[int, int | None]:
    settings = session.settings
    control = _port(port, settings.port, DEFAULT_PORT, "--port or TRAINMASTER_PORT")
    if no_dashboard:
        return control, None
    dashboard = _port(
        dashboard_port,
        settings.dashboard_port,
        DEFAULT_DASHBOARD_PORT,
        "--dashboard-port or TRAINMASTER_DASHBOARD_PORT",
    )
    if dashboard == control:
        raise typer.BadParameter(f"control plane and dashboard cannot both have port {control}")
    return control, dashboard


def _port(option: int | None, setting: int | None, default: int, chosen_by: str) -> int:
    wanted = next(each for each in (option, setting, default) if each is not None)
    if wanted == 0:
        return health.free_port()
    health.require_free(wanted, chosen_by)
    return wanted


@contextmanager
def _only_supervisor(home: Home) -> Iterator[int | None]:
    """Hold the lock that one supervisor of `home` has at a time; None when another has it."""
    lock = os.open(home.root / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
    finally:
        os.close(lock)


def _require_dead(home: Home, wanted: Installation) -> None:
    """See that no part runs, and forget those that died in an earlier life."""
    living = [record for record in home.processes() if record.alive]
    if living:
        names = ", ".join(f"{record.name} (pid {record.pid})" for record in living)
        raise ConflictError(
            f"{names} of {home.root} still run without a supervisor: "
            f"end them with `trainmaster down --home {home.root}` first"
        )
    for record in home.processes():
        home.forget_process(record.name)
    parts.remember_nodes(home, wanted.nodes, clustered=wanted.clustered)


def _greet_again(session: Session, home: Home, choice: _Choice) -> None:
    control = home.process("control")
    if (
        control is None
        or control.address is None
        or not health.answers(f"{control.address}/readyz")
    ):
        raise ConflictError(
            f"another `trainmaster up` is starting or stopping on {home.root}: wait for it, or end "
            f"it with `trainmaster down --home {home.root}`"
        )
    session.output.say(f"Trainmaster already runs from {home.root}.")
    dashboard = home.process("dashboard")
    shown_dashboard = dashboard.address if dashboard is not None and dashboard.alive else None
    api = connect(control.address, stored_token(home))
    _greet(session, home, control.address, shown_dashboard, api, choice)
    _name_demo(session, api, choice)


def _detached(session: Session, wanted: Installation, choice: _Choice) -> int:
    detach(wanted, restart=session.settings.supervise, output=session.output)
    api = connect(wanted.url, stored_token(wanted.home))
    _greet(session, wanted.home, wanted.url, wanted.dashboard_url, api, choice)
    _name_demo(session, api, choice)
    return 0


def _foreground(session: Session, wanted: Installation, choice: _Choice) -> int:
    say = session.output.say
    with keeping(wanted, restart=session.settings.supervise, say=say) as keeper:
        try:
            api = keeper.bring_up(say)
        except Interrupted:
            return INTERRUPTED
        _greet(session, wanted.home, wanted.url, wanted.dashboard_url, api, choice)
        if not choice.as_json:
            session.output.line("Ctrl-C stops everything.")
        watcher = threading.Thread(
            target=_show_demo, args=(session, api, keeper.stop.is_set), daemon=True
        )
        if choice.demo:
            watcher.start()
        keeper.keep()
        if choice.demo:
            watcher.join(timeout=3.0)
        say("stopping everything")
    return 0


def _name_demo(session: Session, api: Api, choice: _Choice) -> None:
    if choice.demo:
        run, _ = ensure_demo(api)
        session.output.say(f"The example run is {run['id']}: see `trainmaster show {run['id']}`.")


def _show_demo(session: Session, api: Api, stopping: Callable[[], bool]) -> None:
    """Follow the example until it ends; what goes wrong here must not end the installation."""
    from trainmaster.cli.follow import follow
    from trainmaster.cli.progress import display_on

    say = session.output.say
    display = None
    try:
        run, is_new = ensure_demo(api)
        say(f"{'Submitted' if is_new else 'Following'} run {run['id']} ({run['name']}).")
        display = display_on(session.output.stderr)
        last = follow(api, run["id"], display, stopping=stopping)
        display.close()
        if last is not None:
            say(f"Run {run['id']} {_ending(last)} Everything stays up until Ctrl-C.")
    except TrainmasterError as error:
        say(f"The example run cannot be shown now: {error.message}")
        say("Where it stands: `trainmaster top`, or the page of runs in the browser.")
    finally:
        if display is not None:
            display.close()


def _ending(run: dict[str, Any]) -> str:
    because = f": {run['because']}" if run.get("because") else ""
    return f"{run['state']} at step {run['step']}{because}".rstrip(".") + "."


def _greet(
    session: Session, home: Home, url: str, dashboard: str | None, api: Api, choice: _Choice
) -> None:
    """Print the addresses and a one-time login link."""
    if choice.as_json:
        session.output.json(process_rows(home))
        return
    line = session.output.line
    line(f"Control plane  {url}")
    if dashboard is not None:
        code = api.post("/v1/login-codes")["code"]
        line(f"Dashboard      {dashboard}")
        line(f"Log in         {dashboard}/auth/login?code={code}   (works once)")
    line(f"State          {_short(home.root)}")


def _short(path: Path) -> str:
    """Return a path below the current folder relative to it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
