"""From settings to a listening process: the state directory, the one process that may use it, the
schema, the first token.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType

import uvicorn
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from control import auth, rights
from control.app import create_app
from control.arrivals import Arrivals
from control.clock import Clock, SteadyClock, SystemClock
from control.db import rulebook, unreadable
from control.db.instants import source_of
from control.db.sql import schema, soundness
from control.db.sql.engine import Database
from control.rules import packs
from control.settings import Settings
from trainmaster.errors import ConflictError, UserError
from trainmaster.home import ADMIN_TOKEN
from trainmaster.plugins import add_rule_parts, add_schedules

log = logging.getLogger(__name__)

PREPARE_TRIES = 5
GRACE_S = 5
"""For how long requests that are under way may go on after SIGTERM."""


class HeldError(UserError):
    """Another process uses this state directory, or this database file."""

    code = "home_in_use"


class _Server(uvicorn.Server):
    """Drains after SIGTERM before it stops: nobody new is sent here meanwhile. A second signal ends
    that.

    Args:
        drain: called at the first signal, within its handler.
        drain_s: for how long all is still answered after SIGTERM. Who presses Ctrl-C does not wait.
    """

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None], drain_s: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._drain_s = drain_s
        self._draining = False
        self._drained_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        first, self._draining = not self._draining, True
        if first:
            self._drain()
        if first and sig == signal.SIGTERM and self._drain_s > 0:
            self._drained_at = time.monotonic() + self._drain_s
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._drained_at is not None and time.monotonic() >= self._drained_at:
            self.should_exit = True
        return await super().on_tick(counter)


def migrate(settings: Settings) -> bool:
    """Bring the schema up to date; return whether anything was done.

    Raises:
        UserError: the state directory or the database cannot be used, or the schema is newer than
            this code.
    """
    with _opened(settings) as db:
        return schema.upgrade(db)


def mend(settings: Settings, run: str) -> int:
    """Give a run whose spec cannot be read that of its newest attempt; return its generation.

    Raises:
        UserError: there is nothing to mend, or nothing to mend it with.
    """
    with _opened(settings) as db:
        schema.require_current(db)
        with db.write() as connection:
            return unreadable.mend(connection, run, actor="control", now=SystemClock().now())


def serve(settings: Settings, clock: Clock | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        clock: None for one that follows the database's.

    Raises:
        UserError: the state directory, the port or the database cannot be used.
        HeldError: another process uses this state directory, or the database file.
    """
    add_schedules()
    add_rule_parts()
    with ExitStack() as stack:
        db = stack.enter_context(_opened(settings))
        if db.is_sqlite:
            schema.upgrade(db)
        else:
            schema.require_current(db)
        if clock is None:
            clock = steady = SteadyClock(source_of(db))
            steady.start()
            stack.callback(steady.stop)
        prepare(settings, db, clock)
        listener = stack.enter_context(_listening(settings))
        address = _address(settings.host, listener.getsockname()[1])

        def announce() -> None:
            settings.home.record_process("control", os.getpid(), address)
            log.info(
                "listening at %s, database %s",
                address,
                db.engine.url.render_as_string(hide_password=True),
            )

        app = create_app(settings, db, clock, on_start=announce)
        stack.callback(settings.home.forget_process, "control", os.getpid())
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=30,
            http=Arrivals,
            lifespan="on",
            ws="none",
            server_header=False,
        )
        # The server raises the signal that stopped it once more when it is done; by then it has
        # been followed, and what this process holds is still to be put away.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _followed)
        _Server(config, app.state.drain, settings.drain_s).run(sockets=[listener])


def _followed(_number: int, _frame: object) -> None:
    pass


def prepare(settings: Settings, db: Database, clock: Clock) -> None:
    """See that the default rules and an admin's token are there.

    Raises:
        ConflictError: other control planes that start just now are faster, time and again.
    """
    for _ in range(PREPARE_TRIES - 1):
        try:
            return _prepare(settings, db, clock.now())
        except ConflictError:
            # Another control plane begins on the same database; what it wrote is found next.
            continue
    return _prepare(settings, db, clock.now())


def _prepare(settings: Settings, db: Database, now: datetime) -> None:
    with db.write() as connection:
        seeded = sum(
            rulebook.seed(connection, packs.load(name), pack=name, now=now) for name in packs.NAMES
        )
        kept = settings.home.token(ADMIN_TOKEN)
        if not auth.has_admin(connection, kept):
            _, token = auth.create_token(
                connection, role=rights.ADMIN, name=None, node=None, actor="control", now=now
            )
            path = settings.home.write_token(token, ADMIN_TOKEN)
            log.info("wrote an admin's token to %s", path)
    if seeded:
        log.info("added or renewed %d rules of the packs", seeded)


@contextmanager
def _opened(settings: Settings) -> Iterator[Database]:
    settings.home.prepare()
    with ExitStack() as stack:
        stack.enter_context(sole_use(settings))
        file = sqlite_file(settings.database)
        if file is not None:
            used_before = settings.home.token(ADMIN_TOKEN) is not None
            soundness.require_sound(file, used_before=used_before)
        db = Database(settings.database, timeout_s=settings.database_timeout_s)
        stack.callback(db.close)
        yield db


@contextmanager
def sole_use(settings: Settings) -> Iterator[None]:
    """See that no other control plane uses a database on SQLite, from this state directory or from
    another; on PostgreSQL several may.

    Raises:
        HeldError: one does.
        UserError: the database is no file, or its folder cannot be used.
    """
    file = sqlite_file(settings.database)
    with ExitStack() as stack:
        if settings.database_url is None:
            settings.home.database.parent.mkdir(parents=True, exist_ok=True)
            of_home = f"the state directory {settings.home.root}"
            mend = "set TRAINMASTER_HOME to another folder"
            stack.enter_context(_held(settings.lock, of_home, mend))
        if file is not None:
            lock = file.with_name(f"{file.name}.lock")
            mend = "let them share a PostgreSQL (docs/high-availability.md)"
            stack.enter_context(_held(lock, f"the database file {file}", mend))
        yield


def sqlite_file(url: str) -> Path | None:
    """Return the file of a database on SQLite, with links followed; None for a server's.

    Raises:
        UserError: it is on SQLite, and in no file.
    """
    if not url.startswith("sqlite"):
        return None
    try:
        path = make_url(url).database
    except ArgumentError as error:
        raise UserError(f"TRAINMASTER_DATABASE_URL is not a database address: {error}") from error
    if not path or path == ":memory:" or path.startswith("file:"):
        raise UserError(
            "TRAINMASTER_DATABASE_URL must name the database's file by its path, as in "
            "sqlite:////var/lib/trainmaster/trainmaster.db; or leave it out"
        )
    return Path(path).resolve()


@contextmanager
def _held(path: Path, what: str, mend: str) -> Iterator[None]:
    """Hold `path` as long as this process lives.

    Raises:
        HeldError: another process does.
        UserError: its folder cannot be used.
    """
    try:
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise UserError(f"{what} cannot be used: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip()
            raise HeldError(
                f"another control plane{f' (pid {holder})' if holder else ''} already uses {what}: "
                f"stop it first, or {mend}"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(512)
        except OSError as error:
            raise UserError(
                f"cannot listen at {settings.host}:{settings.port} ({error.strerror}): "
                "stop what uses the port, or set TRAINMASTER_PORT to another one",
                code="port_in_use",
            ) from error
        yield listener


def _address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in {"0.0.0.0", "::", ""} else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
