"""`python -m control serve` and `python -m control migrate`.

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
from trainmaster.errors import TrainmasterError
from trainmaster.home import Home

NAME = "control"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    given = _parser().parse_args(argv)
    try:
        settings = _settings(given)
        logging.basicConfig(
            level=settings.log_level,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        for chatty in ("apscheduler", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        # Imported late: `--help` and a bad setting need neither web framework nor database.
        from control import serving

        if given.command == "migrate":
            changed = serving.migrate(settings)
            sys.stderr.write(
                "the schema is up to date now\n" if changed else "the schema was up to date\n"
            )
            return 0
        serving.serve(settings)
    except TrainmasterError as error:
        sys.stderr.write(f"{NAME}: {error.message}\n")
        return error.exit_status
    return 0


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
    for command in (serve, migrate):
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
