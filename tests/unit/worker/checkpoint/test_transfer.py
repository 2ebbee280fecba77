"""Tensors get into host memory plainly, or from a CUDA device on a stream of its own (what that
does is in tests/gpu).
"""

from __future__ import annotations

import torch

from worker.checkpoint.part import About, Copies
from worker.checkpoint.segment import Segment
from worker.checkpoint.transfer import Arrival, FromCuda, FromHost, transfer_of
from worker.devices import ComputeDevice


def test_the_kind_of_device_chooses_the_way() -> None:
    assert isinstance(transfer_of(ComputeDevice("cpu")), FromHost)
    assert isinstance(transfer_of(ComputeDevice("emu-a")), FromHost), "it computes on the CPU"
    assert isinstance(transfer_of(ComputeDevice("cuda", 1)), FromCuda)
    assert not torch.cuda.is_initialized(), "choosing touches no device"


class LateCopies(FromHost):
    """As a device that has not begun when the host goes on; and how segments were made ready."""

    def __init__(self) -> None:
        self.locked: list[Segment] = []
        self.under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def lock(self, segment: Segment) -> None:
        self.locked.append(segment)

    def copy(self, segment: Segment, byte: int, tensor: torch.Tensor) -> None:
        target = segment.at(byte, tensor.dtype, tensor.shape)
        self.under_way.append((target, tensor.clone()))

    def sent(self) -> Arrival:
        under_way, self.under_way = self.under_way, []

        def arrive() -> None:
            for target, tensor in under_way:
                target.copy_(tensor)

        return arrive


def test_a_copy_is_read_once_it_has_arrived_and_holds_what_was_there_when_it_began() -> None:
    transfer = LateCopies()
    copies, about = Copies(None, 0, transfer=transfer), About("r1", 1, 1, 0)
    tensor = torch.arange(6.0).reshape(2, 3)
    tensors = {"model/w": tensor, "model/t": tensor.t()}
    copies.prepare(tensors, about)
    assert [segment.num_bytes for segment in transfer.locked] == [copies.num_bytes]
    copy = copies.take(tensors, about)
    expected = {name: each.clone() for name, each in tensors.items()}
    tensor.zero_()
    part = copy.part()
    assert all(torch.equal(part.shards[name].tensor, each) for name, each in expected.items())


def test_plain_copies_are_there_at_once() -> None:
    copies, tensor = Copies(None, 0), torch.arange(6.0).reshape(2, 3)
    part = copies.take({"model/t": tensor.t()}, About("r1", 1, 1, 0)).part()
    assert torch.equal(part.shards["model/t"].tensor, tensor.t())
