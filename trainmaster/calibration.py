"""What a node was found to be able to do: measured by itself, kept by the control plane, used by
the planner. SI units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any

from pydantic import Field

from trainmaster.facts import Message, Name

LEAST, MOST = 1e-30, 1e30
"""Beyond these nothing is measured; quotients of figures within are neither 0 nor infinite."""

Measured = Annotated[float, Field(ge=LEAST, le=MOST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]


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


class LayerFigures(Message):
    """What one layer takes and keeps. A pass of b samples takes `*_s + b * *_per_sample_s` seconds:
    a line through two sizes.

    Attributes:
        flops: of a forward, per sample.
        kept_bytes: from forward to backward, per sample, beside parameters.
    """

    forward_s: Share = 0.0
    forward_per_sample_s: Share = 0.0
    backward_s: Share = 0.0
    backward_per_sample_s: Share = 0.0
    flops: Share = 0.0
    kept_bytes: Share = 0.0


class WorkloadFigures(Message):
    """A workload's layers as one device computes them, in float32.

    Attributes:
        workload: its import path.
        samples: the sizes of the passes that were timed; none on a device of fixed times.
    """

    workload: str
    samples: list[int] = []
    layers: list[LayerFigures] = []


def workload_key(workload: str, params: Mapping[str, Any], code_sha256: str) -> str:
    """Return what tells apart workloads whose layers may take other times."""
    told = json.dumps([workload, params, code_sha256], sort_keys=True)
    return sha256(told.encode()).hexdigest()[:16]


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
        workloads: `workload_key` -> what its layers take here.
    """

    device: str
    flops: dict[Name, Figure] = {}
    layer_time_s: Figure | None = None
    memory_bytes_per_s: Figure | None = None
    to_device_bytes_per_s: Figure | None = None
    links: dict[Name, LinkFigure] = {}
    unmeasured: dict[Name, str] = {}
    workloads: dict[Name, WorkloadFigures] = {}
