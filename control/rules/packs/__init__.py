"""The packs of rules that come with Trainmaster: read once from their files, when a database is
filled or history is tried.

This is the only module of `control.rules` that reads a file; no decider imports it.
"""

from __future__ import annotations

from importlib import resources

from trainmaster.document import parse
from trainmaster.errors import NotFoundError
from trainmaster.rule import Rule, RuleFile

NAMES = ("default", "quiet")


def load(name: str) -> tuple[Rule, ...]:
    """Return the rules of the pack `name`.

    Raises:
        NotFoundError: there is no such pack.
    """
    return tuple(read(name).rules)


def read(name: str) -> RuleFile:
    """Return the file of the pack `name`, its tests included.

    Raises:
        NotFoundError: there is no such pack.
    """
    if name not in NAMES:
        raise NotFoundError(f"there is no pack {name!r}; known are {', '.join(NAMES)}")
    text = resources.files("control.rules.packs").joinpath(f"{name}.yaml").read_text("utf-8")
    return parse(RuleFile, text)
