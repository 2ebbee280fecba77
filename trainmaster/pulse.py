"""What a rank last did, in a few bytes that it overwrites in place: so its agent sees a rank that
is stuck, which can tell nothing any more.

Instants are those of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_LAYOUT: Final = struct.Struct("<4sBBqdd")
_MAGIC: Final = b"TMP1"
SIZE: Final = _LAYOUT.size


class Section(IntEnum):
    """A part of a rank's life. Only steps have a duration that can be learned."""

    STARTING = 1
    RESTORING = 2
    STEP = 3
    CHECKPOINT = 4
    HELD = 5
    EVALUATING = 6
    ENDING = 7


class Activity(IntEnum):
    """What a rank is at. While it waits for others, others hold it up."""

    OTHER = 1
    COMPUTE = 2
    WAIT = 3
    DATA = 4


@dataclass(frozen=True, slots=True)
class Beat:
    """A rank at one instant.

    Attributes:
        step: the step it is in, or has done last.
        progress_at: when it came into this section or this step, seconds.
        active_at: when it began with this activity, seconds.
    """

    section: Section
    activity: Activity
    step: int
    progress_at: float
    active_at: float


def encode(
    section: Section, activity: Activity, step: int, progress_at: float, active_at: float
) -> bytes:
    """Return the `SIZE` bytes of a beat, given by its parts: a rank writes many in each step."""
    return _LAYOUT.pack(_MAGIC, section, activity, step, progress_at, active_at)


def decode(data: bytes) -> Beat | None:
    """Return what was encoded; None when it cannot be read, as while it is written."""
    if len(data) != SIZE:
        return None
    magic, section, activity, step, progress_at, active_at = _LAYOUT.unpack(data)
    if magic != _MAGIC:
        return None
    try:
        return Beat(Section(section), Activity(activity), step, progress_at, active_at)
    except ValueError:
        return None
