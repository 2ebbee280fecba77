"""What goes where: answers to stdout (one JSON document with `--json`), all else to stderr."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_HARMLESS = "\n\t\u200c\u200d"
_WRITTEN_OUT = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})

WIDE = 400
"""Columns that a table may take when nobody's terminal limits it: pipes want whole words."""


class Output:
    """The two streams of a command."""

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self._stdout = stdout
        self._stderr = stderr

    @property
    def stdout(self) -> TextIO:
        """Where answers go."""
        return self._stdout or sys.stdout

    @property
    def stderr(self) -> TextIO:
        """Where progress, problems and logs go."""
        return self._stderr or sys.stderr

    def json(self, value: Any) -> None:
        """Write `value` as the one document on stdout."""
        indent = 2 if self.stdout.isatty() else None
        self.stdout.write(json.dumps(value, indent=indent, allow_nan=False) + "\n")
        self.stdout.flush()

    def compact_json(self, value: Any) -> None:
        """Write `value` as one line, for a stream of documents."""
        self.stdout.write(json.dumps(value, allow_nan=False) + "\n")
        self.stdout.flush()

    def line(self, text: str = "") -> None:
        """Write one line of an answer for people."""
        self.stdout.write(shown(text) + "\n")
        self.stdout.flush()

    def say(self, text: str) -> None:
        """Write one line that is not an answer."""
        self.stderr.write(shown(text) + "\n")
        self.stderr.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
        """Write a table for people, or the sentence `empty` when it has no rows."""
        cells = [[shown(cell_text(cell)) for cell in row] for row in rows]
        if not cells:
            self.line(empty)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self.console(self.stdout).print(table)

    def fields(self, fields: Mapping[str, object]) -> None:
        """Write name and value pairs for people, one a line; what is None or empty is left out."""
        pairs = [
            (name, cell_text(value))
            for name, value in fields.items()
            if value is not None and value != "" and value != []
        ]
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"{name:<{width}}  {value}")

    def console(self, stream: TextIO) -> Console:
        """Return a rich console on `stream`: plain text unless it is a terminal."""
        from rich.console import Console

        return Console(
            file=stream,
            width=None if stream.isatty() else WIDE,
            markup=False,
            highlight=False,
            emoji=False,
        )


def cell_text(value: object) -> str:
    """Return a value as a person reads it in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={cell_text(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell_text(each) for each in value)
    return str(value)


def shown(text: str) -> str:
    """Return `text` such that a terminal shows it and obeys none of it.

    Line ends, tabs and joiners stay; other control, surrogate and direction characters, and what
    breaks lines in other ways, are written out.
    """
    return "".join(
        char
        if char in _HARMLESS or unicodedata.category(char) not in _WRITTEN_OUT
        else char.encode("unicode_escape").decode()
        for char in text
    )
