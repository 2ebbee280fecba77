"""What the agent hands to a rank: two files, and nothing else. No torch here; both sides import
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainmaster.emulation import Device, Link
from trainmaster.facts import Message
from trainmaster.orders import Drill, Order
from trainmaster.wire import Assignment


class Emulation(Device):
    """What the ranks of a node emulate, for development, drills and honest benchmarks on small
    machines.

    Attributes:
        links: node name -> what a message to it costs.
    """

    links: dict[str, Link] = {}


class SlotDevice(Message):
    """The device behind a slot.

    Attributes:
        kind: `cpu`, `cuda`, or an emulated one.
        index: which of the node's CUDA devices; 0 for any other kind.
        runs_ahead: whether the host only launches work on it, and goes on.
    """

    kind: str = "cpu"
    index: Annotated[int, Field(ge=0)] = 0
    runs_ahead: bool = False


class Launch(Message):
    """One rank's start: `launch-RANK.json` in the attempt's folder on the node.

    Attributes:
        spool: the file that this rank alone appends to.
        inbox: the file in which orders and drills appear; shared by the node's ranks of this
            generation, replaced atomically.
        memory: the run's folder in memory that belongs to the agent; null where it has none.
    """

    assignment: Assignment
    rank: int
    node: str
    spool: Path
    inbox: Path
    memory: Path | None = None
    emulation: Emulation = Emulation()
    device: SlotDevice = SlotDevice()


class Inbox(Message):
    """`inbox.json`: all orders and drills of the generation so far, replaced as a whole when they
    change.
    """

    orders: list[Order] = []
    drills: list[Drill] = []
