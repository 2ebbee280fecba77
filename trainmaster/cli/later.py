"""Commands that outsiders may already write into scripts, and that this version does not have."""

from __future__ import annotations

from typing import Any

import typer

from trainmaster.errors import UserError

COMMANDS = {
    "calibrate": "Measure what nodes and links can do.",
}

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_later_commands(app: typer.Typer) -> None:
    """Add each command so that `--help` lists it, and calling it says that it is not there yet."""
    for name, text in COMMANDS.items():
        add_later_command(app, name, text)


def add_later_command(app: typer.Typer, name: str, text: str) -> None:
    """Add one command that says that it is not there yet."""
    app.command(name, help=f"{text} Not in this version.", context_settings=_ANYTHING)(
        _refusing(name)
    )


def _refusing(name: str) -> Any:
    def refuse(context: typer.Context) -> None:
        raise UserError(f"{name}: not in this version", code="not_in_this_version")

    return refuse
