"""`python -m control serve`, `migrate`, `backup`, `restore`, `restored` and `mend`.

What a person can mend ends in one sentence on stderr: exit status 2 for what they gave, 3 for what
is out of reach.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from control.settings import Settings
from trainmaster import logs
from trainmaster.errors import TrainmasterError
from trainmaster.home import Home

NAME = "control"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    given = _parser().parse_args(argv)
    try:
        settings = _settings(given)
        logs.begin(settings.log_format, level=settings.log_level)
        for chatty in ("apscheduler", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        # Imported late: `--help` and a bad setting need neither web framework nor database.
        from control import serving

        if given.command == "serve":
            serving.serve(settings)
        else:
            sys.stderr.write(f"{_done(given, settings)}\n")
    except TrainmasterError as error:
        sys.stderr.write(f"{NAME}: {error.message}\n")
        return error.exit_status
    return 0


def _done(given: argparse.Namespace, settings: Settings) -> str:
    """Carry out a command that ends by itself; return what became of it."""
    from control import backup, serving
    from control.clock import SystemClock

    if given.command == "migrate":
        changed = serving.migrate(settings)
        return "the schema is up to date now" if changed else "the schema was up to date"
    if given.command == "backup":
        size = backup.back_up(settings, given.file)
        return f"wrote {given.file}, {size} bytes"
    if given.command == "restored":
        runs = backup.note_restored(settings, SystemClock())
        return f"noted for {runs} runs; the control planes may be started now"
    if given.command == "mend":
        generation = serving.mend(settings, given.run)
        return f"run {given.run} has the spec of its generation {generation} again"
    aside = backup.restore(settings, given.file, SystemClock())
    kept = f"; the database that was there is kept as {aside}" if aside else ""
    return f"restored {given.file}{kept}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m control", description="The control plane of Trainmaster."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the API and reconcile runs")
    serve.add_argument("--host", help="where to listen (TRAINMASTER_HOST, 127.0.0.1)")
    serve.add_argument(
        "--port", type=int, help="where to listen (TRAINMASTER_PORT, 8700; 0: any free port)"
    )
    migrate = commands.add_parser("migrate", help="bring the database's schema up to date")
    backup = commands.add_parser("backup", help="write a back-up of the embedded database")
    backup.add_argument("file", type=Path, help="the file to write; it must not be there yet")
    restore = commands.add_parser(
        "restore", help="put a back-up in the place of the embedded database"
    )
    restore.add_argument("file", type=Path, help="what `backup` wrote")
    restored = commands.add_parser(
        "restored", help="after pg_restore: have no generation be numbered twice"
    )
    mend = commands.add_parser("mend", help="give a run whose spec cannot be read its last one")
    mend.add_argument("run", help="its id")
    for command in (serve, migrate, backup, restore, restored, mend):
        command.add_argument(
            "--home", type=Path, help="the state directory (TRAINMASTER_HOME, .trainmaster)"
        )
    return parser


def _settings(given: argparse.Namespace) -> Settings:
    settings = Settings.from_environment()
    if given.home is not None:
        settings = dataclasses.replace(settings, home=Home(given.home.absolute()))
    if getattr(given, "host", None) is not None:
        settings = dataclasses.replace(settings, host=given.host)
    if getattr(given, "port", None) is not None:
        settings = dataclasses.replace(settings, port=given.port)
    return settings


if __name__ == "__main__":
    sys.exit(main())
