"""What agent and nest say to each other: JSON, one document a line, over stdin and stdout.

The agent names each child; the nest knows nothing of runs. No torch here: both sides import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from trainmaster.facts import Message
from worker.launch import Emulation, SlotDevice


class StartRank(Message):
    """Fork a rank. What it prints goes to `log`."""

    do: Literal["start_rank"] = "start_rank"
    name: str
    launch: Path
    log: Path


class HostStore(Message):
    """Fork a child that hosts a TCPStore on a free port; it says the port."""

    do: Literal["host_store"] = "host_store"
    name: str
    log: Path


class Describe(Message):
    """Fork a child that looks at a workload and says a `Description`; killed after `limit_s`."""

    do: Literal["describe"] = "describe"
    name: str
    workload: str
    params: dict[str, Any]
    data: str
    limit_s: Annotated[int, Field(ge=1)]
    log: Path


class Calibrate(Message):
    """Fork a child that measures a device and says a `Description`; killed after `limit_s`.

    Attributes:
        workload: whose layers are measured, too: its import path; "" for none.
    """

    do: Literal["calibrate"] = "calibrate"
    name: str
    device: SlotDevice
    emulation: Emulation
    workload: str = ""
    params: dict[str, Any] = {}
    data: str = "workload"
    limit_s: Annotated[int, Field(ge=1)]
    log: Path


class Description(Message):
    """What a child says that was to find something out: a `wire.WorkloadInfo` or a `Calibration`,
    or what is wrong.
    """

    result: dict[str, Any] | None = None
    problems: list[dict[str, Any]] = []


class Ready(Message):
    """The nest has imported what its ranks need."""

    told: Literal["ready"] = "ready"
    import_s: float


class Forked(Message):
    """A child lives. `started` tells it from a later process with the same pid."""

    told: Literal["forked"] = "forked"
    name: str
    pid: int
    started: str


class Said(Message):
    """All that a child had to say, told before its exit."""

    told: Literal["said"] = "said"
    name: str
    text: str


class Exited(Message):
    """A child is dead, and so is all of its process group: by a signal, or with an exit code."""

    told: Literal["exited"] = "exited"
    name: str
    exit_code: int | None
    signal: int | None


Request = StartRank | HostStore | Describe | Calibrate
Fact = Ready | Forked | Said | Exited

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="do")])
_FACT: TypeAdapter[Fact] = TypeAdapter(Annotated[Fact, Field(discriminator="told")])


def parse_request(line: bytes) -> Request:
    """Read one line from the agent."""
    return _REQUEST.validate_json(line)


def parse_fact(line: bytes) -> Fact:
    """Read one line from the nest."""
    return _FACT.validate_json(line)


def encode(message: Request | Fact) -> bytes:
    """Return the line that says `message`."""
    return message.encoded() + b"\n"
