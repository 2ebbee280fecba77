"""docs/cli.md and docs/exit-codes.md name all that there is."""

from pathlib import Path

import typer.main

from trainmaster.cli.__main__ import build
from trainmaster.cli.settings import from_environment
from trainmaster.errors import ExitCode

DOCS = Path(__file__).parents[4] / "docs"


def commands(group, prefix: str = "") -> set[str]:
    names = set()
    for name, command in group.commands.items():
        nested = getattr(command, "commands", None)
        names |= commands(command, f"{name} ") if nested else {f"{prefix}{name}"}
    return names


def test_every_command_has_its_entry():
    text = (DOCS / "cli.md").read_text()
    missing = {name for name in commands(typer.main.get_command(build())) if f"`{name}" not in text}
    assert missing == set()


def test_every_variable_that_is_read_has_its_entry():
    class Recorder(dict):
        def __init__(self) -> None:
            self.asked: set[str] = set()

        def get(self, key, default=None):
            self.asked.add(key)
            return default

    recorder = Recorder()
    from_environment(recorder)
    text = (DOCS / "cli.md").read_text()
    assert {name for name in recorder.asked if f"`{name}`" not in text} == set()


def test_every_exit_code_of_a_rank_has_its_entry():
    text = (DOCS / "exit-codes.md").read_text()
    assert [code for code in ExitCode if f"| {code.value} |" not in text] == []
