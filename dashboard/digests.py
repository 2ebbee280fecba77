"""What a run was made of, as digests by which two runs can be told apart. Pure."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Literal, get_args

from dashboard.data import Json

Part = Literal["spec", "plan", "code", "data", "environment", "weights"]
PARTS: tuple[Part, ...] = get_args(Part)


def digests(run: Json) -> dict[Part, str]:
    """Return the SHA-256 of each part that the API tells of, in hexadecimal.

    Code, data and environment are as a node found them when it looked at the workload, the weights
    those at the end. Spec and plan are digested here, as JSON with sorted keys; the plan without
    its prediction, which follows from measurements and changes no result.
    """
    workload = run.get("workload") or {}
    plan = run.get("plan")
    if plan is not None:
        plan = {name: value for name, value in plan.items() if name != "predicted"}
    told: dict[Part, str | None] = {
        "spec": _digest(run.get("spec")),
        "plan": _digest(plan),
        "code": workload.get("code_sha256"),
        "data": workload.get("data_sha256"),
        "environment": workload.get("environment_sha256"),
        "weights": run.get("weights_sha256"),
    }
    return {part: digest for part, digest in told.items() if digest}


def environment_told(run: Json) -> str:
    """Return what is known of the run's environment beside its digest, in one line."""
    known = (run.get("workload") or {}).get("environment") or {}
    return " · ".join(f"{name} {version}" for name, version in known.items())


def _digest(value: Any) -> str | None:
    if not value:
        return None
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
