"""What layers of a workload take and keep, measured."""

from __future__ import annotations

import pytest

from trainmaster.errors import SpecError
from worker.launch import Emulation, SlotDevice
from worker.layer_times import measured

PARAMS = {"layers": 2, "width": 32, "heads": 2, "context": 16}


def figures_of(
    emulation: Emulation | None = None,
    params: dict[str, int] | None = None,
    workload: str = "worker.workloads.byte_gpt:workload",
):
    device = SlotDevice(kind="cpu", index=0, runs_ahead=False)
    return measured(workload, params or PARAMS, "text:stdlib", device, emulation or Emulation())


def test_each_layer_is_timed_and_what_it_keeps_is_counted():
    [figures] = figures_of().values()
    assert figures.samples == [1, 4]
    first, last = figures.layers
    for layer in (first, last):
        assert layer.forward_s + layer.forward_per_sample_s > 0
        assert layer.backward_s + layer.backward_per_sample_s > 0
        assert layer.flops > 0
        # At least its inputs, and not the weights.
        assert 16 * 32 * 4 < layer.kept_bytes < 16 * 32 * 4 * 100


def test_a_slower_device_takes_as_much_longer():
    [slow] = figures_of(Emulation(speed=0.02)).values()
    [real] = figures_of().values()

    def total(figures) -> float:
        return sum(each.forward_s + 4 * each.forward_per_sample_s for each in figures.layers)

    assert total(slow) > 5 * total(real)


def test_a_device_of_fixed_times_is_not_timed():
    [figures] = figures_of(Emulation(layer_time_s=0.01)).values()
    assert figures.samples == []
    assert all(each.forward_s == each.forward_per_sample_s == 0 for each in figures.layers)
    assert all(each.kept_bytes > 0 for each in figures.layers)


def test_figures_are_kept_by_what_may_change_them():
    keys = {
        key
        for params in (PARAMS, {**PARAMS, "width": 64})
        for key in figures_of(Emulation(layer_time_s=0.01), params)
    }
    assert len(keys) == 2


def test_a_workload_that_cannot_be_loaded_is_told():
    with pytest.raises(SpecError):
        figures_of(workload="worker.nowhere:workload")
