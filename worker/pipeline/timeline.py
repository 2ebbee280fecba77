"""How messages between stages are measured: the one place that reaches into torch's private
pipelining functions.

Schedules post and await their messages through two module-level functions, `_batch_p2p` and
`_wait_batch_p2p`. They are replaced by ones that measure; `tests/distributed/test_timeline.py`
fails when torch renames or bypasses them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch.distributed.pipelining import schedules

from trainmaster.pulse import Activity
from worker.emulation import SlowLink
from worker.reporting.meter import Meter

# Torch's own, taken before anybody replaced them; renamed or gone, this import fails.
_post: Final = schedules._batch_p2p
_await: Final = schedules._wait_batch_p2p


class Label(NamedTuple):
    """What a message carries into or out of `stage`: an activation or a gradient of a
    micro-batch.
    """

    kind: str
    stage: int
    micro_batch: int


def labelled(ops: list[dist.P2POp], label: Label) -> list[dist.P2POp]:
    """Write on messages what they carry."""
    for op in ops:
        op.label = label  # type: ignore[attr-defined]
    return ops


class _Posted(list[Any]):
    """Handles of messages, with what is known of each."""

    def __init__(self, works: list[Any], ops: Sequence[dist.P2POp], posted_at: float) -> None:
        super().__init__(works)
        self.labels: list[tuple[Label | None, int]] = [
            (getattr(op, "label", None), op.tensor.numel() * op.tensor.element_size()) for op in ops
        ]
        self.posted_at = posted_at


def measure_messages(meter: Meter, links: Mapping[int, SlowLink]) -> None:
    """Measure every message that torch's pipeline schedules post or await in this process, for its
    whole life. Called again, the new meter replaces the old one.

    Args:
        links: by global rank of the receiver, those that are emulated.
    """

    def measured_post(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[Any]:
        if not p2p_ops:
            return []
        started = time.perf_counter()
        works = _carried(p2p_ops, desc, links) if links else _post(p2p_ops, desc)
        ended = time.perf_counter()
        meter.posted(started, ended)
        if meter.actions is None:
            return works
        posted = _Posted(works, p2p_ops, started)
        for label, num_bytes in posted.labels:
            if label is not None:
                sends = label.kind.startswith("send")
                kind = label.kind if sends else "post"
                meter.note(kind, started, ended, label.stage, label.micro_batch, num_bytes)
        return posted

    def measured_await(work: list[Any]) -> None:
        if not work:
            return
        before = meter.pulse.turn_to(Activity.WAIT)
        if isinstance(work, _Posted) and len(work) == len(work.labels):
            _await_each(work, meter)
        else:
            started = time.perf_counter()
            _await(work)
            meter.waited(started, time.perf_counter())
        meter.pulse.turn_to(before)

    schedules._batch_p2p = measured_post
    schedules._wait_batch_p2p = measured_await


def _await_each(posted: _Posted, meter: Meter) -> None:
    """Await messages one by one, and record each wait and each arrival."""
    for work, (label, num_bytes) in zip(posted, posted.labels, strict=True):
        began = time.perf_counter()
        _await([work])
        ended = time.perf_counter()
        meter.waited(began, ended)
        if label is None:
            continue
        what = label.kind.rpartition("_")[2]
        receives = label.kind.startswith("receive")
        meter.note(
            f"wait_{what}" if receives else "wait_send",
            began,
            ended,
            label.stage,
            label.micro_batch,
        )
        if receives:
            meter.note(
                label.kind, posted.posted_at, ended, label.stage, label.micro_batch, num_bytes
            )


def _carried(ops: list[dist.P2POp], desc: str | None, links: Mapping[int, SlowLink]) -> list[Any]:
    """Post messages, those over emulated links through these."""
    slow = {
        place: links[op.peer]
        for place, op in enumerate(ops)
        if op.op is dist.isend and op.peer in links
    }
    plain = iter(_post([op for place, op in enumerate(ops) if place not in slow], desc))
    works: list[Any] = []
    for place, op in enumerate(ops):
        if place in slow:
            tensor = op.tensor.detach().clone()  # the sender may go on and change its own
            send = partial(op.op, tensor, group=op.group, tag=op.tag, group_dst=op.group_peer)
            size = tensor.numel() * tensor.element_size()
            works.append(slow[place].carry(send, size))
        else:
            works.append(next(plain))
    return works
