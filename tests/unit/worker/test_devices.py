"""What follows from the kind of a rank's device."""

from __future__ import annotations

import pytest
import torch

from trainmaster.errors import UserError
from worker.devices import GLOO, HOST, NCCL, ComputeDevice, Relay, backend_of, cross, sum_dtype
from worker.launch import SlotDevice

CPU = ComputeDevice("cpu")


def test_a_group_has_the_backend_of_its_one_kind() -> None:
    assert backend_of(["cuda", "cuda"]) == NCCL
    assert backend_of(["cuda", "cpu"]) == backend_of(["emu-a", "emu-a"]) == GLOO
    assert [cross(kinds) for kinds in (["cpu"], ["emu-a", "emu-b"], ["cuda", "cpu"])] == [
        False,
        True,
        True,
    ]


def test_an_emulated_kind_computes_on_the_host() -> None:
    device = ComputeDevice.of(SlotDevice(kind="emu-a"))
    device.enter()
    assert device.torch_device == HOST
    tensor = torch.ones(2)
    assert device.put(tensor) is tensor
    assert sum_dtype(HOST, "float64") is torch.float64
    assert sum_dtype(HOST, "float32") is torch.float32
    assert sum_dtype(torch.device("cuda", 0), "float64") is torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_torch_does_not_have_is_told_with_the_mend() -> None:
    with pytest.raises(UserError, match=r"CUDA device 1, but torch .* TRAINMASTER_DEVICES=cpu"):
        ComputeDevice("cuda", 1).enter()


def test_what_goes_through_host_memory_is_a_copy_and_is_counted() -> None:
    relay = Relay(CPU)
    tensor = torch.tensor([1.5, -2.0])
    copied = relay.copy_of(tensor, torch.float64)
    assert copied.dtype is torch.float64
    assert torch.equal(copied.float(), tensor)
    tensor.zero_()
    assert copied.tolist() == [1.5, -2.0]
    assert relay.room_for(tensor).dtype is torch.float32
    assert relay.num_bytes == 2 * 8 + 2 * 4
