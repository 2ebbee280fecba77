"""Names and ids: what they may look like, and how the ids that follow from others are made.

Ids are made to be safe as path segments, URL segments and metric labels. Names are a person's
text: shown, escaped, never used as a path.
"""

from __future__ import annotations

import re
import unicodedata

MAX_NAME_CHARS = 120
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_CHECKPOINT_ID = re.compile(
    r"(?P<run>[a-z0-9][a-z0-9_]*)-g(?P<generation>\d{1,9})-s(?P<step>\d{1,12})"
)
_BIDI_CONTROLS = re.compile(r"[\u202a-\u202e\u2066-\u2069]")  # they make a name read as another one
_CHECKPOINT_FOLDER = re.compile(r"g(?P<generation>[1-9]\d{0,8})-step(?P<step>0|[1-9]\d{0,11})")
_DIGITS = re.compile(r"[0-9]{1,18}")
_WINDOWS_DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{d}{n}" for d in ("com", "lpt") for n in range(10)),
}


def name_problem(name: str) -> str | None:
    """Return why `name` cannot be the name of a run, rule or token, or None if it can."""
    if not name.strip():
        return "is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed"
    if name != name.strip():
        return "begins or ends with white space"
    if any(unicodedata.category(char) in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"} for char in name) or (
        _BIDI_CONTROLS.search(name)
    ):
        return "contains a control character or one that cannot be shown"
    if "/" in name or "\\" in name or name in {".", ".."}:
        return "contains a path separator; names are shown to people and are not paths"
    return None


def node_id_problem(node: str) -> str | None:
    """Return why `node` cannot be a node's id, or None if it can."""
    if _ID.fullmatch(node) is None or ".." in node or node.split(".")[0] in _WINDOWS_DEVICES:
        return "must be 1 to 63 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
    return None


def node_id_of(machine: str) -> str:
    """Return a machine's name, changed as little as makes it a node's id."""
    name = re.sub(r"[^a-z0-9._-]+", "-", machine.lower()).strip("-._")[:63]
    return name if node_id_problem(name) is None else "node"


def checkpoint_id(run: str, generation: int, step: int) -> str:
    """Return the id of the checkpoint that `generation` of `run` takes after `step`."""
    return f"{run}-g{generation}-s{step}"


def parse_checkpoint_id(text: str) -> tuple[str, int, int] | None:
    """Return (run, generation, step), or None if `text` is not a checkpoint's id."""
    match = _CHECKPOINT_ID.fullmatch(text)
    if match is None:
        return None
    return match["run"], int(match["generation"]), int(match["step"])


def checkpoint_folder(generation: int, step: int) -> str:
    """Return the name of a checkpoint's folder below the run's."""
    return f"g{generation}-step{step}"


def parse_checkpoint_folder(text: str) -> tuple[int, int] | None:
    """Return (generation, step), or None if `text` is not the name of a checkpoint's folder."""
    match = _CHECKPOINT_FOLDER.fullmatch(text)
    if match is None:
        return None
    return int(match["generation"]), int(match["step"])


def rank_stream(run: str, generation: int, rank: int) -> str:
    """Return the name of the spool stream that one rank of one generation writes."""
    return f"{run}/{generation}/{rank}"


def parse_rank_stream(stream: str) -> tuple[str, int, int] | None:
    """Return (run, generation, rank), or None if the stream is not a rank's."""
    parts = stream.split("/")
    if len(parts) != 3 or not all(_DIGITS.fullmatch(part) for part in parts[1:]):
        return None
    return parts[0], int(parts[1]), int(parts[2])


AGENT_STREAM = "agent"
"""How the streams of a node's own facts begin: starts and exits of ranks, results of chores."""


def agent_stream(incarnation: str) -> str:
    """Return the name of a node's own spool stream.

    `incarnation` is random per spool file, so that a file begun anew (rotation, a fresh disk)
    never meets the cursor of another.
    """
    return f"{AGENT_STREAM}:{incarnation}"


def is_agent_stream(stream: str) -> bool:
    """Return whether `stream` carries a node's own facts; its cursor is kept per node."""
    return stream.partition(":")[0] == AGENT_STREAM
