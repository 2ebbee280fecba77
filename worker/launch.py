"""What the agent hands to a rank: two files, and nothing else. No torch here; both sides import
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainmaster.orders import Drill, Order
from trainmaster.plan import Strict
from trainmaster.wire import Assignment, Message

EmulatedKind = Annotated[str, Field(pattern=r"^emu-[a-z0-9-]{1,30}$")]
"""A name for a kind of devices that nobody takes for a real one."""


class Link(Strict):
    """An emulated directed link from this node."""

    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    mbps: Annotated[float, Field(gt=0)] | None = None


class Emulation(Strict):
    """A device slower than the real one, for development, drills and honest benchmarks on small
    machines.

    Attributes:
        speed: compute takes 1 / speed as long; the rest is slept.
        layer_time_s: instead: fixed seconds per layer and micro-batch of a forward; a backward
            takes twice that.
        memory_bytes: what the device claims to have.
        kind: a kind of devices that it pretends to be. It computes on the CPU, and reaches
            ranks on other kinds through host memory.
        links: node name -> what a message to it costs.
    """

    speed: Annotated[float, Field(gt=0, le=1)] | None = None
    layer_time_s: Annotated[float, Field(gt=0)] | None = None
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    kind: EmulatedKind | None = None
    links: dict[str, Link] = {}


class SlotDevice(Message):
    """The device behind a slot.

    Attributes:
        kind: `cpu`, `cuda`, or an emulated one.
        index: which of the node's CUDA devices; 0 for any other kind.
    """

    kind: str = "cpu"
    index: Annotated[int, Field(ge=0)] = 0


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
