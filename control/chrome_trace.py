"""A step's timeline in Chrome's trace format, for Perfetto and about:tracing. Pure.

A process is a replica (named with its nodes), a thread one of its ranks. What goes on beside others
(messages and gradients under way) are asynchronous events. Arrows lead from where a message was
sent to where it was waited for. Of the plan, each replica has a process of its own.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainmaster.timeline import COMPUTE, IN_FLIGHT, NONE

Json = dict[str, Any]

PLANNED_PROCESS: Final = 1_000_000
"""Added to a replica's number for its plan."""
_LETTERS: Final = {"forward": "F", "backward": "B", "input": "I", "weights": "W", "loss": "L"}


def trace_of(told: Json) -> Json:
    """Return the trace of what `control.timelines.document` tells."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            key: told[key] for key in ("run", "generation", "step", "clock_error_s") if key in told
        },
        "traceEvents": [*_names(told), *_measured(told), *_arrows(told), *_planned(told)],
    }


def _names(told: Json) -> Iterator[Json]:
    nodes: dict[int, list[str]] = {}
    for rank in told["ranks"]:
        known = nodes.setdefault(rank["replica"], [])
        if rank["node"] is not None and rank["node"] not in known:
            known.append(rank["node"])
    for replica, names in nodes.items():
        where = f" ({', '.join(names)})" if names else ""
        yield _meta(replica, 0, "process_name", f"replica {replica}{where}")
        yield _meta(PLANNED_PROCESS + replica, 0, "process_name", f"replica {replica}, as planned")
    for rank in told["ranks"]:
        yield _meta(
            rank["replica"], rank["rank"], "thread_name", f"rank {rank['rank']}, {_place(rank)}"
        )
        yield {
            **_meta(rank["replica"], rank["rank"], "thread_sort_index", ""),
            "args": {"sort_index": rank["rank"]},
        }
    for planned in told["planned"]:
        for rank in planned["ranks"]:
            process = PLANNED_PROCESS + planned["replica"]
            yield _meta(process, rank["rank"], "thread_name", f"rank {rank['rank']}")


def _place(rank: Json) -> str:
    part = f", part {rank['tensor']}" if rank["tensor"] else ""
    return f"place {rank['place']}{part}"


def _meta(process: int, thread: int, name: str, value: str) -> Json:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": {"name": value}}


def _measured(told: Json) -> Iterator[Json]:
    flights = 0
    for rank in told["ranks"]:
        for action in _rows(rank["actions"]):
            event = _event(rank["replica"], rank["rank"], action)
            if action["kind"] == "pass":
                continue  # lies around all others of its rank
            if action["kind"] not in IN_FLIGHT:
                yield {**event, "ph": "X", "dur": _us(action["end_s"] - action["start_s"])}
                continue
            flights += 1
            pair = {**event, "id": flights, "cat": "under way"}
            yield {**pair, "ph": "b"}
            yield {**pair, "ph": "e", "ts": _us(action["end_s"])}


def _arrows(told: Json) -> Iterator[Json]:
    sent: dict[tuple[Any, ...], Json] = {}
    number = 0
    for rank in told["ranks"]:
        for action in _rows(rank["actions"]):
            if action["kind"].startswith("send_"):
                step = 1 if action["kind"] == "send_activation" else -1
                what = action["kind"].removeprefix("send_")
                target = (rank["replica"], rank["tensor"], what, action["stage"] + step)
                sent[*target, action["number"]] = {"rank": rank, "action": action}
    for rank in told["ranks"]:
        for action in _rows(rank["actions"]):
            what = action["kind"].removeprefix("wait_")
            key = (rank["replica"], rank["tensor"], what, action["stage"], action["number"])
            if action["kind"] == what or key not in sent:
                continue
            number += 1
            origin = sent[key]
            flow = {"cat": "message", "name": what, "id": number}
            yield {
                **flow,
                "ph": "s",
                "pid": origin["rank"]["replica"],
                "tid": origin["rank"]["rank"],
                "ts": _us(origin["action"]["start_s"]),
            }
            yield {
                **flow,
                "ph": "f",
                "bp": "e",
                "pid": rank["replica"],
                "tid": rank["rank"],
                "ts": _us(action["end_s"]),
            }


def _planned(told: Json) -> Iterator[Json]:
    for planned in told["planned"]:
        for rank in planned["ranks"]:
            for action in _rows(rank["actions"]):
                event = _event(PLANNED_PROCESS + planned["replica"], rank["rank"], action)
                yield {**event, "ph": "X", "dur": _us(action["end_s"] - action["start_s"])}


def _rows(columns: Json) -> Iterator[Json]:
    names = list(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def _event(process: int, thread: int, action: Json) -> Json:
    kind, stage, number = action["kind"], action["stage"], action["number"]
    args = {
        key: value
        for key, value in (("stage", stage), ("number", number), ("bytes", action.get("bytes")))
        if value not in {None, NONE, 0} or (value == 0 and key != "bytes")
    }
    if kind in COMPUTE:
        name = f"{_LETTERS[kind]}{number} of stage {stage}"
    elif number == NONE:
        name = kind
    else:
        name = f"{kind} {number}"
    return {
        "pid": process,
        "tid": thread,
        "ts": _us(action["start_s"]),
        "name": name,
        "cat": "compute" if kind in COMPUTE else kind,
        "args": args,
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
