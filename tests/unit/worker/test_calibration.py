"""A device is measured; one that is emulated as what it plays."""

from __future__ import annotations

import time

import pytest
import torch

from trainmaster.calibration import Calibration
from worker import calibration
from worker.calibration import calibrate
from worker.devices import ComputeDevice
from worker.launch import Emulation, SlotDevice

HERE = ComputeDevice("cpu")


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_device_is_measured():
    found = calibrate(SlotDevice(kind="cpu"), Emulation())
    assert set(found.flops) == {"float32", "bfloat16"}
    assert all(each.value > 1e6 for each in found.flops.values())
    assert found.memory_bytes_per_s.value > 1e6
    assert (found.layer_time_s, found.to_device_bytes_per_s) == (None, None)
    assert Calibration.model_validate_json(found.model_dump_json()) == found


def test_a_device_of_fixed_times_tells_the_time_of_a_layer_instead():
    found = calibrate(SlotDevice(kind="emu-a"), Emulation(layer_time_s=0.004))
    assert found.layer_time_s.value > 0.004 - 1e-9
    assert (found.flops, found.device) == ({}, "emu-a")


def test_a_slower_device_takes_as_long_as_it_would():
    clock = calibration._Clock(HERE, Emulation(speed=0.25))
    rate = clock.rate(1.0, lambda: time.sleep(0.04), plays=True)
    assert rate.value <= 1 / 0.16
    assert clock.rate(1.0, lambda: time.sleep(0.04), plays=False).value > rate.value
