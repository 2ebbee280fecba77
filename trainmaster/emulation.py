"""What an emulated device and an emulated link are: the keys of a cluster file, of an agent's
profile and of a what-if, the same in all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from trainmaster.plan import Positive, Strict

Share = Annotated[float, Field(ge=0, le=10)]

LEAST_SPEED = 1e-6
"""A device a million times slower; of less, nobody would see the end of a step."""

LONGEST_S = 3600.0
"""For a layer, and for a message to arrive."""

EmulatedKind = Annotated[str, Field(pattern=r"^emu-[a-z0-9-]{1,30}$")]
"""A name for a kind of devices that nobody takes for a real one."""


class Drift(Strict):
    """A device that changes its speed from `at_step` on, evenly over `over_steps` steps, until it
    is `speed` times as fast as before.
    """

    at_step: Positive
    over_steps: Positive = 1
    speed: Annotated[float, Field(ge=LEAST_SPEED, le=10)]

    def speed_at(self, step: int) -> float:
        """Return how many times as fast as at first the device is at `step`."""
        done = min(1.0, max(0.0, (step - self.at_step + 1) / self.over_steps))
        return 1.0 + (self.speed - 1.0) * done


class Failure(Strict):
    """A device that fails as `at_step` begins: its ranks are killed, or stop without a word. It
    does so in the first `generations` of a run; then it is repaired.
    """

    at_step: Positive
    how: Literal["kill", "hang"] = "kill"
    generations: Positive = 1


class Device(Strict):
    """A device slower, smaller or less steady than the real one.

    Attributes:
        speed: compute takes 1 / speed as long; the rest is slept.
        layer_time_s: instead: fixed seconds per layer and micro-batch of a forward; a backward
            takes twice that.
        memory_bytes: what the device claims to have.
        kind: a kind of devices that it pretends to be. It computes on the CPU, and reaches ranks on
            other kinds through host memory.
        jitter: each action takes up to this share longer; by how much follows from `seed`, the
            rank, the step and which action of the step it is.
    """

    speed: Annotated[float, Field(ge=LEAST_SPEED, le=1)] | None = None
    layer_time_s: Annotated[float, Field(ge=1e-9, le=LONGEST_S)] | None = None
    memory_bytes: Annotated[int, Field(gt=0, le=2**60)] | None = None
    kind: EmulatedKind | None = None
    jitter: Share = 0.0
    drift: Drift | None = None
    failure: Failure | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class Link(Strict):
    """A directed link.

    Attributes:
        latency_ms: what a message needs to arrive, beyond the time for which it occupies the link.
        mbps: what the link carries, in 10^6 bits a second; None: a message occupies it for no time.
        jitter: the latency of each message is up to this share longer.
    """

    latency_ms: Annotated[float, Field(ge=0, le=1e3 * LONGEST_S)] = 0.0
    mbps: Annotated[float, Field(ge=1e-6, le=1e9)] | None = None
    jitter: Share = 0.0


class Stated(Device):
    """What the profile of a node states, beside what was measured."""

    model_config = ConfigDict(extra="ignore")

    links: dict[str, Link] = {}


def stated_by(profile: Mapping[str, Any]) -> tuple[Stated, str]:
    """Return what a node's profile states, whoever has written it, and what is wrong with it, as a
    clause: then nothing of it counts.
    """
    try:
        return Stated.model_validate(profile), ""
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return Stated(), f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
