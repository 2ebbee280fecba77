"""Messages between stages on devices of different kinds: through host memory, on Gloo."""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist

from worker.devices import Relay

Message = tuple[Literal["activation", "gradient"], int]
"""What it carries, and of which micro-batch."""


class Staging:
    """The host memory of one stage's messages.

    Args:
        crosses: whether the ranks of its pipeline are on devices of different kinds; if not,
            messages are left as they are.
    """

    def __init__(self, relay: Relay, *, crosses: bool) -> None:
        self._relay = relay
        self._crosses = crosses
        self._expected: dict[Message, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def sending(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return operations that send what `ops` would, from host memory."""
        if not self._crosses:
            return ops
        return [dist.P2POp(op.op, self._relay.copy_of(op.tensor), op.peer, op.group) for op in ops]

    def receiving(self, message: Message, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return operations that receive what `ops` would into host memory; `land` takes it from
        there.
        """
        if not self._crosses:
            return ops
        pairs = [(self._relay.room_for(op.tensor), op.tensor) for op in ops]
        self._expected[message] = pairs
        return [
            dist.P2POp(op.op, host, op.peer, op.group)
            for op, (host, _) in zip(ops, pairs, strict=True)
        ]

    def land(self, message: Message) -> None:
        """Copy a message that has arrived to where its stage looks for it."""
        for host, target in self._expected.pop(message, ()):
            target.detach().copy_(host, non_blocking=True)
