"""What a node was found to be able to do: measured by itself, kept by the control plane, used by
the planner. SI units.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainmaster.wire import Message, Name

Measured = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Figure(Message):
    """A figure that was measured several times.

    Attributes:
        value: the median.
        spread: standard deviation over the mean.
    """

    value: Measured
    spread: Share = 0.0


class LinkFigure(Message):
    """A directed link, fitted to messages of several sizes: `latency_s + bytes / bytes_per_s`.

    Attributes:
        residual: by how much the fit is off for the size that it suits worst, as a share.
        message_s: bytes of a message -> seconds, of the fastest.
    """

    latency_s: Share
    bytes_per_s: Measured
    residual: Share = 0.0
    message_s: dict[int, Measured] = {}


class Calibration(Message):
    """What one node found.

    Attributes:
        device: the kind that was measured.
        flops: dtype -> FLOP/s of products of matrices.
        layer_time_s: of a device that is emulated with fixed times: seconds of a layer's forward.
        memory_bytes_per_s: read and written by copies in the device's memory.
        to_device_bytes_per_s: from pinned host memory to a device that has its own.
        links: neighbour -> the link to it.
        unmeasured: neighbour -> why the link to it was not measured.
    """

    device: str
    flops: dict[Name, Figure] = {}
    layer_time_s: Figure | None = None
    memory_bytes_per_s: Figure | None = None
    to_device_bytes_per_s: Figure | None = None
    links: dict[Name, LinkFigure] = {}
    unmeasured: dict[Name, str] = {}
