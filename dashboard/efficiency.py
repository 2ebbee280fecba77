"""How much of what devices can compute goes into the model (MFU). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.data import Json

PASSES = 3
"""A forward's operations in a training step: once forwards, twice backwards."""

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def mfu_factor(run: Json, nodes: Sequence[Json]) -> float | None:
    """Return what over a step's seconds is its MFU: operations of a step over what all devices of
    the run were measured to do in a second; None where a node is not calibrated, or nobody has
    counted the model's operations.
    """
    spec, workload = run.get("spec") or {}, run.get("workload") or {}
    train = spec.get("train") or {}
    forward, batch = workload.get("forward_flops"), train.get("global_batch")
    dtype = DTYPES.get(str(train.get("precision") or "fp32"), "float32")
    profiles = {str(node["id"]): node.get("profile") or {} for node in nodes}
    peaks = [
        _peak(profiles.get(str(rank.get("node"))) or {}, dtype) for rank in run.get("ranks") or []
    ]
    if not forward or not batch or not peaks or None in peaks:
        return None
    total = sum(peak for peak in peaks if peak is not None)
    return PASSES * float(forward) * float(batch) / total if total > 0 else None


def _peak(profile: Json, dtype: str) -> float | None:
    found = ((profile.get("calibration") or {}).get("flops") or {}).get(dtype)
    return None if found is None else float(found["value"])
