"""What a device can do, measured: products of matrices, copies in its memory and to it.

An emulated device is measured as the device that it plays: what ranks would sleep is slept here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

from trainmaster.calibration import Calibration, Figure
from worker import settings
from worker.devices import ComputeDevice
from worker.emulation import Pace
from worker.launch import Emulation, SlotDevice

REPEATS: Final = 5
LEAST_S: Final = 0.03
"""Shorter measurements tell more of the clock than of the device."""
WIDTH: Final = {"cuda": 4096, "cpu": 384}
COPIED_BYTES: Final = {"cuda": 256 << 20, "cpu": 32 << 20}
DTYPES: Final = {"cuda": ("float32", "bfloat16", "float16"), "cpu": ("float32", "bfloat16")}


def calibrate(device: SlotDevice, emulation: Emulation) -> Calibration:
    """Measure a device, some seconds long.

    Raises:
        UserError: torch does not have the device.
    """
    torch.set_num_threads(settings.read().num_threads)
    computing = ComputeDevice.of(device)
    computing.enter()
    kind = "cuda" if computing.is_cuda else "cpu"
    clock = _Clock(computing, emulation)
    where = computing.torch_device
    with torch.inference_mode():
        given = torch.empty(COPIED_BYTES[kind], dtype=torch.uint8, device=where).zero_()
        taken = torch.empty_like(given).zero_()
        copies = clock.rate(2.0 * given.numel(), lambda: taken.copy_(given), plays=False)
        to_device = None
        if computing.is_cuda:
            pinned = torch.empty(given.numel(), dtype=torch.uint8, pin_memory=True).zero_()
            to_device = clock.rate(
                float(pinned.numel()),
                lambda: taken.copy_(pinned, non_blocking=True),
                plays=False,
            )
        fixed = emulation.layer_time_s is not None
        return Calibration(
            device=device.kind,
            flops={}
            if fixed
            else {dtype: _product(clock, kind, dtype, where) for dtype in DTYPES[kind]},
            layer_time_s=clock.layer() if fixed else None,
            memory_bytes_per_s=copies,
            to_device_bytes_per_s=to_device,
        )


def _product(clock: _Clock, kind: str, dtype: str, where: torch.device) -> Figure:
    width = WIDTH[kind]
    draws = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(width, width, generator=draws).to(where, getattr(torch, dtype))
        for _ in range(2)
    )
    out = torch.empty_like(left)
    return clock.rate(2.0 * width**3, lambda: torch.mm(left, right, out=out), plays=True)


class _Clock:
    """Times work on a device, as long as the device that is played would take."""

    def __init__(self, device: ComputeDevice, emulation: Emulation) -> None:
        self._device = device
        self._emulation = emulation

    def rate(self, amount: float, work: Callable[[], object], *, plays: bool) -> Figure:
        """Return how much a second is done by work that does `amount`.

        Args:
            plays: whether the emulated device is slower at it; it is at what layers compute.
        """
        work()
        times = 1
        while self._spent_s(work, times, plays=False) < LEAST_S:
            times *= 2
        rates = [times * amount / self._spent_s(work, times, plays=plays) for _ in range(REPEATS)]
        return _figure(rates)

    def layer(self) -> Figure:
        """Return the seconds of a layer's forward on a device of fixed times."""
        return _figure([self._spent_s(lambda: None, 1, plays=True) for _ in range(REPEATS)])

    def _spent_s(self, work: Callable[[], object], times: int, *, plays: bool) -> float:
        # Each measurement stands alone: a pace of its own does not carry over what was early.
        pace = Pace(self._emulation if plays else Emulation())
        self._finish()
        started = time.perf_counter()
        for _ in range(times):
            work()
        self._finish()
        began, ended = pace.rest("forward", 1, started)
        return ended - began

    def _finish(self) -> None:
        if self._device.is_cuda:
            torch.cuda.synchronize()


def _figure(values: list[float]) -> Figure:
    return Figure(
        value=statistics.median(values), spread=statistics.stdev(values) / statistics.mean(values)
    )
