"""What comes of the planner's answers: a spec that spells its plan out, and clusters to plan for.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.data import Json
from dashboard.forms import as_text
from trainmaster.document import Document, read, validate
from trainmaster.errors import SpecError
from trainmaster.plan import MIB, ParallelAsk

_AS_ASKED = ("micro_batch", "schedule", "zero", "tensor", "sync_every", "offload", "recompute")
_DEFAULTS = {"zero": 0, "tensor": 1, "sync_every": 1, "offload": "none", "recompute": "none"}


def submittable(spec: str, found: Json) -> str | None:
    """Return the spec with the plan that was found for it written out under `parallel`; None where
    the spec is no mapping, or the plan is not one that a spec can say.
    """
    plan = found.get("plan")
    try:
        document = read(spec).value
    except SpecError:
        return None
    if not isinstance(document, Mapping) or not isinstance(plan, Mapping):
        return None
    pipelines = plan.get("pipelines")
    if not isinstance(pipelines, Sequence) or not pipelines:
        return None
    return as_text({**document, "parallel": _parallel(plan, pipelines)})


def layout_of(plan: Json) -> Json:
    """Return a run's plan as a spec spells it under `parallel`, without its nodes: they are chosen
    anew.
    """
    return _parallel(plan, [_unplaced(each) for each in plan["pipelines"]])


def fewer_replicas(plan: Json, replicas: int) -> Json:
    """Return the layout of the first `replicas` pipelines of a plan, which share its micro-batches
    as evenly as they can; as a spec spells it, without nodes.
    """
    pipelines = plan["pipelines"]
    each, over = divmod(sum(int(one["micro_batches"]) for one in pipelines), replicas)
    kept = [
        {**_unplaced(one), "micro_batches": each + (place < over)}
        for place, one in enumerate(pipelines[:replicas])
    ]
    return _parallel(plan, kept)


def layout_read(text: str) -> Json:
    """Return what is written as a layout: the mapping under `parallel` of a spec, with or without
    that key.

    Raises:
        SpecError: it is none, with every problem.
    """
    document = read(text)
    if isinstance(document.value, Mapping) and set(document.value) == {"parallel"}:
        document = Document(document.value["parallel"])
    return validate(ParallelAsk, document).model_dump(mode="json", exclude_unset=True)


def _unplaced(pipeline: Mapping[str, Any]) -> Json:
    return {name: value for name, value in pipeline.items() if name != "nodes"}


def _parallel(plan: Mapping[str, Any], pipelines: Sequence[Mapping[str, Any]]) -> Json:
    told: Json = {
        name: plan[name] for name in _AS_ASKED if name in plan and plan[name] != _DEFAULTS.get(name)
    }
    if plan.get("virtual", 1) != 1:
        told["virtual"] = plan["virtual"]
    bucket_mb = plan.get("bucket_bytes", 25 * MIB) / MIB
    if bucket_mb != 25:
        told["bucket_mb"] = bucket_mb
    told["pipelines"] = [
        {
            name: list(each[name]) if isinstance(each[name], list | tuple) else each[name]
            for name in ("layers", "micro_batches", "nodes")
            if each.get(name)
        }
        for each in pipelines
    ]
    return told


def cluster_of(nodes: Sequence[Json]) -> str:
    """Return connected nodes as a cluster file, to be changed and planned for."""
    told: list[Json] = []
    links: list[Json] = []
    for node in nodes:
        if node.get("state") == "lost":
            continue
        profile = node.get("profile") or {}
        emulate = {
            name: profile[name]
            for name in ("speed", "layer_time_s", "memory_bytes")
            if profile.get(name) is not None
        }
        each: Json = {"name": node["id"], "slots": node.get("slots")}
        told.append({**each, **({"emulate": emulate} if emulate else {})})
        links += [
            {"from": node["id"], "to": peer, **{key: link[key] for key in _LINK if key in link}}
            for peer, link in (profile.get("links") or {}).items()
        ]
    return as_text({"nodes": told} | ({"links": links} if links else {}))


_LINK = ("latency_ms", "mbps")
