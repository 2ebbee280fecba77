"""Brings an installation up part by part, and says in a sentence what keeps it from coming up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from trainmaster.cli import health, parts
from trainmaster.cli.quantities import instant
from trainmaster.cli.session import Api
from trainmaster.cli.settings import address
from trainmaster.cli.supervisor import Supervisor
from trainmaster.errors import ForbiddenError, UnauthenticatedError, UnavailableError, UserError
from trainmaster.home import Home

CONTROL_READY_S = 120.0
DASHBOARD_READY_S = 120.0
AGENTS_READY_S = 120.0
NEST_S = 15.0
_LOOK_S = 0.1
_MIN_FREE_BYTES = 64 << 20
_WORDS_CHARS = 1000


class Interrupted(BaseException):
    """A person ended `up` before everything was up: a wish, as KeyboardInterrupt, and no error."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to be up: ports as numbers that are free, nodes as agents are started with them."""

    home: Home
    port: int
    dashboard_port: int | None
    nodes: list[parts.Node]
    clustered: bool

    @property
    def url(self) -> str:
        """Where the control plane is."""
        return address(self.port)

    @property
    def dashboard_url(self) -> str | None:
        """Where the dashboard is, if it is wanted."""
        return None if self.dashboard_port is None else address(self.dashboard_port)


def require_home(home: Home) -> None:
    """Create the state directory and see that it can hold an installation.

    Raises:
        UserError: it is not a folder, cannot be written to, or its disk is full.
    """
    if home.root.exists() and not home.root.is_dir():
        raise UserError(
            f"the state directory {home.root} is a file: name a folder with --home or "
            f"TRAINMASTER_HOME"
        )
    home.prepare()
    disk = os.statvfs(home.root)
    free = disk.f_bavail * disk.f_frsize
    if free < _MIN_FREE_BYTES:
        raise UserError(
            f"the disk of the state directory {home.root} has {free >> 20} MiB free; at least "
            f"{_MIN_FREE_BYTES >> 20} MiB are needed: free some space, or name another folder with "
            f"--home or TRAINMASTER_HOME"
        )


def bring_up(
    wanted: Installation,
    supervisor: Supervisor,
    *,
    environment: Mapping[str, str],
    connect: Callable[[str, str], Api],
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> Api:
    """Start all parts in order; return a connection to the control plane once all are healthy.

    Raises:
        UnavailableError: a part ended, or was not healthy in time.
        Interrupted: `stopping` came true.
    """
    home = wanted.home
    wait = _Waiting(supervisor, home, stopping)
    began = datetime.now(UTC)
    say("starting the control plane")
    supervisor.start(parts.control_part(home, wanted.port, environment))
    if wanted.dashboard_port is not None:
        supervisor.start(parts.dashboard_part(home, wanted.dashboard_port, wanted.url, environment))
    wait.until(lambda: health.answers(f"{wanted.url}/readyz"), "control", CONTROL_READY_S)
    api = connect(wanted.url, stored_token(home))
    say("starting " + ("the agent" if len(wanted.nodes) == 1 else f"{len(wanted.nodes)} agents"))
    for node in wanted.nodes:
        ensure_node_token(home, node.name, api, partial(connect, wanted.url))
    for node in wanted.nodes:
        supervisor.start(
            parts.agent_part(home, node, wanted.url, environment, clustered=wanted.clustered)
        )
    for node in wanted.nodes:
        part = parts.agent_name(node.name, clustered=wanted.clustered)
        wait.until(partial(_present, api, node.name, began), part, AGENTS_READY_S)
    for node in wanted.nodes:
        nest = parts.nest_name(node.name, clustered=wanted.clustered)
        wait.a_little(partial(_lives, home, nest), NEST_S)
    if wanted.dashboard_url is not None:
        say("waiting for the dashboard")
        probe = f"{wanted.dashboard_url}/_stcore/health"
        wait.until(lambda: health.answers(probe), "dashboard", DASHBOARD_READY_S)
    return api


def stored_token(home: Home) -> str:
    """Return the token that the control plane left in its state directory.

    Raises:
        UserError: there is none.
    """
    token = home.token()
    if token is None:
        raise UserError(
            f"the control plane left no admin token in {home.root / 'tokens'}: its database is "
            f"older than this folder; put a token there as the file 'admin', or start with a new "
            f"--home"
        )
    return token


def ensure_node_token(home: Home, node: str, api: Api, connect_as: Callable[[str], Api]) -> None:
    """See that `home` holds a token for the agent of `node` which the control plane accepts."""
    name = parts.token_name(node)
    kept = home.token(name)
    if kept is not None and _accepted(connect_as(kept)):
        return
    created = api.post("/v1/tokens", {"role": "agent", "node": node})
    home.write_token(created["token"], name)


def _accepted(api: Api) -> bool:
    try:
        api.get("/v1/nodes")
    except UnauthenticatedError:
        return False
    except ForbiddenError:
        return True  # known, and an agent's
    finally:
        api.close()
    return True


def _present(api: Api, name: str, since: datetime) -> bool:
    for node in api.get("/v1/nodes"):
        if node["name"] == name and node["state"] == "present":
            seen = instant(node["last_seen_at"])
            return seen is not None and seen >= since
    return False


def _lives(home: Home, name: str) -> bool:
    record = home.process(name)
    return record is not None and record.alive


@dataclass(frozen=True, slots=True)
class _Waiting:
    supervisor: Supervisor
    home: Home
    stopping: Callable[[], bool]

    def until(self, ready: Callable[[], bool], part: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not self._holds(ready):
            if self.stopping():
                raise Interrupted
            how = self.supervisor.died(part)
            log = self.home.log(part)
            if how is not None:
                raise UnavailableError(
                    f"{part} {how} before it was ready{_last_words(log)}. Its log: {log}"
                )
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{part} was not ready within {limit_s:.0f} s{_last_words(log)}. Its log: {log}"
                )
            time.sleep(_LOOK_S)

    def a_little(self, ready: Callable[[], bool], limit_s: float) -> None:
        """Wait for what does not keep the rest from being up."""
        deadline = time.monotonic() + limit_s
        while not self._holds(ready) and time.monotonic() < deadline:
            if self.stopping():
                raise Interrupted
            time.sleep(_LOOK_S)

    def _holds(self, ready: Callable[[], bool]) -> bool:
        try:
            return ready()
        except UnavailableError:
            return False


def _last_words(log: Path) -> str:
    """Return the last line of a log as `: LINE`, or nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:_WORDS_CHARS].rstrip('.')}" if last else ""
