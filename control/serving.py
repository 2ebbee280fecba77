"""From settings to a listening process: the state directory, the one process that may use it, the
schema, the first token.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn

from control import auth
from control.app import create_app
from control.clock import Clock, SystemClock
from control.db import rulebook, schema, soundness
from control.db.engine import Database
from control.settings import Settings
from trainmaster import document
from trainmaster.errors import UserError
from trainmaster.home import ADMIN_TOKEN
from trainmaster.rule import Rule, RuleFile

log = logging.getLogger(__name__)

PACKS = Path(__file__).parent / "rules" / "packs"
GRACE_S = 5
"""For how long requests that are under way may go on after SIGTERM."""


class HeldError(UserError):
    """Another process uses this state directory."""

    code = "home_in_use"


def migrate(settings: Settings) -> bool:
    """Bring the schema up to date; return whether anything was done.

    Raises:
        UserError: the state directory or the database cannot be used, or the schema is newer than
            this code.
    """
    with _opened(settings) as db:
        return schema.upgrade(db)


def serve(settings: Settings, clock: Clock | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UserError: the state directory, the port or the database cannot be used.
        HeldError: another process uses this state directory.
    """
    clock = clock or SystemClock()
    with ExitStack() as stack:
        db = stack.enter_context(_opened(settings))
        if db.is_sqlite:
            schema.upgrade(db)
        else:
            schema.require_current(db)
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
            lifespan="on",
            ws="none",
            server_header=False,
        )
        # The server raises the signal that stopped it once more when it is done; by then it has
        # been followed, and what this process holds is still to be put away.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _followed)
        uvicorn.Server(config).run(sockets=[listener])


def _followed(_number: int, _frame: object) -> None:
    pass


def prepare(settings: Settings, db: Database, clock: Clock) -> None:
    """See that the default rules and an admin's token are there."""
    now = clock.now()
    with db.write() as connection:
        seeded = rulebook.seed(connection, _default_rules(), now=now)
        kept = settings.home.token(ADMIN_TOKEN)
        if not auth.has_admin(connection, kept):
            _, token = auth.create_token(
                connection, role=auth.ADMIN, name=None, node=None, actor="control", now=now
            )
            path = settings.home.write_token(token, ADMIN_TOKEN)
            log.info("wrote an admin's token to %s", path)
    if seeded:
        log.info("added %d default rules", seeded)


def _default_rules() -> list[Rule]:
    return document.parse(RuleFile, (PACKS / "default.yaml").read_text(encoding="utf-8")).rules


@contextmanager
def _opened(settings: Settings) -> Iterator[Database]:
    settings.home.prepare()
    with ExitStack() as stack:
        if settings.database_url is None:
            stack.enter_context(held(settings.lock))
            settings.home.database.parent.mkdir(parents=True, exist_ok=True)
            used_before = settings.home.token(ADMIN_TOKEN) is not None
            soundness.require_sound(settings.home.database, used_before=used_before)
        db = Database(settings.database, timeout_s=settings.database_timeout_s)
        stack.callback(db.close)
        yield db


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold `path` as long as this process lives.

    Raises:
        HeldError: another process does.
    """
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip()
            raise HeldError(
                f"another control plane{f' (pid {holder})' if holder else ''} already uses the "
                "state directory "
                f"{path.parent}: stop it first, or set TRAINMASTER_HOME to another folder"
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
