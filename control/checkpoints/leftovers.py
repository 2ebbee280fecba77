"""What lies in a run's store and belongs to nobody: of saves that a crash cut short, and of
retirements that did not get through. Pure.

Without its manifest a folder is no checkpoint, but it may be one in the making. It goes only once
no process can be left that would still write to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainmaster.ids import parse_checkpoint_folder

SURELY_DEAD_AFTER = timedelta(days=1)
"""After so long an attempt that ended writes no more, even where nobody saw its ranks end."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as an agent found it.

    Attributes:
        committed: whether its manifest is there.
        bytes: of the files that are whole.
    """

    name: str
    committed: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class Writer:
    """An attempt, as far as it may still write.

    Attributes:
        all_exited: whether each of its ranks was seen to end.
    """

    ended_at: datetime | None
    all_exited: bool


def leftovers(
    folders: Iterable[Folder],
    *,
    states: Mapping[str, str],
    writers: Mapping[int, Writer],
    now: datetime,
) -> list[Folder]:
    """Return the folders that go.

    Args:
        states: of the checkpoints that SQL knows, by the name of their folder.
        writers: by generation.
    """
    return [each for each in folders if _goes(each, states.get(each.name), writers, now)]


def _goes(folder: Folder, state: str | None, writers: Mapping[int, Writer], now: datetime) -> bool:
    if state is not None:
        return state == "retired"
    parsed = parse_checkpoint_folder(folder.name)
    if parsed is None or folder.committed:
        return False  # not ours; or whole, and nobody has told us of it yet
    writer = writers.get(parsed[0])
    if writer is None or writer.ended_at is None:
        return False  # an attempt that lives clears away by itself what it could not finish
    return writer.all_exited or now - writer.ended_at > SURELY_DEAD_AFTER
