"""`trainmaster up`: a whole installation on one machine, under one parent."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from trainmaster.cli import health, parts
from trainmaster.cli.bringup import Installation, Interrupted, bring_up, require_home, stored_token
from trainmaster.cli.demo import ensure_demo
from trainmaster.cli.processes import process_rows
from trainmaster.cli.session import Api, Session, session_of
from trainmaster.cli.settings import DEFAULT_DASHBOARD_PORT, DEFAULT_PORT, home_at
from trainmaster.cli.supervisor import Supervisor
from trainmaster.errors import ConflictError, TrainmasterError, UnavailableError
from trainmaster.home import Home

SUPERVISOR = "supervisor"
_INTERRUPTED = 130


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
    detach: Annotated[
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
        if detach:
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
    return parts.cluster_nodes(read_cluster(cluster))


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
    api = _connect(control.address, stored_token(home))
    _greet(session, home, control.address, shown_dashboard, api, choice)


def _connect(url: str, token: str) -> Api:
    from trainmaster.client import Client

    return Client(url, token, timeout_s=30.0)


# In the foreground.


def _foreground(session: Session, wanted: Installation, choice: _Choice) -> int:
    stop = _stop_on_signals()
    supervisor = _supervisor(session, wanted, session.output.say)
    try:
        api = _bring_up(wanted, supervisor, stop.is_set, session.output.say)
        _greet(session, wanted.home, wanted.url, wanted.dashboard_url, api, choice)
        if not choice.as_json:
            session.output.line("Ctrl-C stops everything.")
        watcher = None
        if choice.demo:
            watcher = threading.Thread(
                target=_show_demo, args=(session, api, stop.is_set), daemon=True
            )
            watcher.start()
        _keep(supervisor, stop)
        if watcher is not None:
            watcher.join(timeout=3.0)
        session.output.say("stopping everything")
        return 0
    except Interrupted:
        return _INTERRUPTED
    finally:
        supervisor.stop()
        wanted.home.forget_process(SUPERVISOR, os.getpid())


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
        say(f"The example run cannot be shown: {error.message}")
    finally:
        if display is not None:
            display.close()


def _ending(run: dict[str, Any]) -> str:
    because = f": {run['because']}" if run.get("because") else ""
    return f"{run['state']} at step {run['step']}{because}".rstrip(".") + "."


# In the background.


def _detached(session: Session, wanted: Installation, choice: _Choice) -> int:
    """Put the supervisor into the background, and wait for its word."""
    reader, writer = os.pipe()
    session.output.stdout.flush()
    session.output.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            status = _background(session, wanted, os.fdopen(writer, "w", encoding="utf-8"))
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    os.close(writer)
    try:
        outcome = _outcome(session, reader)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        return _INTERRUPTED
    if "ready" not in outcome:
        error = UnavailableError(
            outcome.get("failed")
            or f"the supervisor ended before all was up; its log: {wanted.home.log(SUPERVISOR)}"
        )
        error.exit_status = outcome.get("exit_status", 1)
        raise error
    api = _connect(wanted.url, stored_token(wanted.home))
    _greet(session, wanted.home, wanted.url, wanted.dashboard_url, api, choice)
    if choice.demo:
        run, _ = ensure_demo(api)
        session.output.say(f"The example run is {run['id']}: see `trainmaster show {run['id']}`.")
    return 0


def _outcome(session: Session, reader: int) -> dict[str, Any]:
    """Pass on what the supervisor says while it brings things up; return its last word."""
    with os.fdopen(reader, encoding="utf-8") as pipe:
        for line in pipe:
            told: dict[str, Any] = json.loads(line)
            if "say" not in told:
                return told
            session.output.say(told["say"])
    return {}


def _background(session: Session, wanted: Installation, report: TextIO) -> int:
    """Be the supervisor, in a session of its own, with a log in place of the terminal."""
    os.setsid()
    log = wanted.home.log(SUPERVISOR)
    log.parent.mkdir(parents=True, exist_ok=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    stop = _stop_on_signals()

    def note(sentence: str) -> None:
        session.output.say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {sentence}")

    def tell(**word: object) -> None:
        with suppress(BrokenPipeError):  # the command that waited is gone
            report.write(json.dumps(word) + "\n")
            report.flush()

    supervisor = _supervisor(session, wanted, note)
    try:
        _bring_up(wanted, supervisor, stop.is_set, lambda sentence: tell(say=sentence))
        tell(ready=True)
        report.close()
        _keep(supervisor, stop)
        return 0
    except Interrupted:
        return _INTERRUPTED
    except (TrainmasterError, OSError) as error:
        status = error.exit_status if isinstance(error, TrainmasterError) else 1
        note(str(error))
        supervisor.stop()
        tell(failed=str(error), exit_status=status)
        return status
    finally:
        supervisor.stop()
        wanted.home.forget_process(SUPERVISOR, os.getpid())


# What both have in common.


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def ask(*_: object) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    return stop


def _supervisor(session: Session, wanted: Installation, say: Callable[[str], None]) -> Supervisor:
    wanted.home.record_process(SUPERVISOR, os.getpid())
    return Supervisor(wanted.home, restart=session.settings.supervise, say=say)


def _bring_up(
    wanted: Installation,
    supervisor: Supervisor,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> Api:
    return bring_up(
        wanted,
        supervisor,
        environment=os.environ,
        connect=_connect,
        stopping=stopping,
        say=say,
    )


def _keep(supervisor: Supervisor, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        supervisor.turn()


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
