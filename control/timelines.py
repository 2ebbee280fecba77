"""The timeline of a step as people read it: what each rank did on one clock, where its time went,
and beside it the order that was planned. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from control.planner import simulate
from control.planner.simulate import Bar, Costs
from trainmaster.errors import UserError
from trainmaster.layout import replica_ranks, roles
from trainmaster.plan import Plan
from trainmaster.sequences import Kind
from trainmaster.timeline import Action, Timeline, ratios, span_of, waits

Json = dict[str, Any]

KINDS: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "input",
    Kind.BACKWARD_WEIGHT: "weights",
}


def document(plan: Plan, found: Mapping[int, Timeline]) -> Json:
    """Return what was recorded of a step, and what was planned.

    Seconds count from when the first rank began the step, on rank 0's clock.

    Args:
        found: the timeline of each rank that told one.
    """
    began_s = min(each.shift_s for each in found.values())
    return {
        "at": instant_of(min(each.at for each in found.values())),
        "missing_ranks": [rank for rank in range(plan.world_size) if rank not in found],
        "clock_error_s": max(each.clock.error_s for each in found.values()),
        "ranks": [_rank(plan, rank, each, found, began_s) for rank, each in sorted(found.items())],
        "planned": [
            _planned(plan, replica, found, began_s) for replica in range(len(plan.pipelines))
        ],
    }


def _rank(
    plan: Plan, rank: int, mine: Timeline, found: Mapping[int, Timeline], began_s: float
) -> Json:
    role = roles(plan)[rank]
    pipeline = [
        found[each] for each in replica_ranks(plan, role.replica, role.tensor) if each in found
    ]
    where = ratios(mine, span_of(pipeline))
    waited = waits(mine, pipeline)
    start_s = mine.shift_s - began_s
    return {
        "rank": rank,
        "replica": role.replica,
        "place": role.stage,
        "tensor": role.tensor,
        "node": role.node,
        "start_s": _s(start_s),
        "end_s": _s(start_s + mine.length_ns / 1e9),
        "clock": {
            "offset_s": mine.clock.offset_s,
            "error_s": mine.clock.error_s,
            "drift": mine.clock.drift,
        },
        "summary": {
            "bubble_ratio": _ratio(where.bubble_ratio),
            "compute_ratio": _ratio(where.compute_ratio),
            "optimizer_ratio": _ratio(where.optimizer_ratio),
            "exposed_comm_ratio": _ratio(where.exposed_comm_ratio),
            "idle_ratio": _ratio(where.idle_ratio),
            "waited_unsent_s": _s(waited.unsent_s),
            "waited_under_way_s": _s(waited.under_way_s),
            "waited_unasked_s": _s(waited.unasked_s),
        },
        "dropped": mine.dropped,
        "actions": _columns(mine.actions, start_s),
    }


def _columns(actions: Sequence[Action], start_s: float) -> Json:
    return {
        "kind": [each.kind for each in actions],
        "stage": [each.stage for each in actions],
        "number": [each.number for each in actions],
        "start_s": [_s(start_s + each.start_ns / 1e9) for each in actions],
        "end_s": [_s(start_s + each.end_ns / 1e9) for each in actions],
        "bytes": [each.num_bytes for each in actions],
    }


def _planned(plan: Plan, replica: int, found: Mapping[int, Timeline], began_s: float) -> Json:
    """Return the planned order of one pipeline's pass, with what each stage's actions took and
    messages that arrive at once: so whatever differs is waiting. It begins when the first pass did.
    """
    pipeline = plan.pipelines[replica]
    depth = plan.depth_of(pipeline)
    ranks = replica_ranks(plan, replica)
    told: Json = {"replica": replica, "schedule": plan.schedule, "because": None, "ranks": []}
    try:
        costs = _costs([found[rank] for rank in ranks if rank in found], len(pipeline.layers))
        times, bars = simulate.run(
            plan.schedule, costs, depth, plan.virtual, pipeline.micro_batches
        )
    except UserError as error:
        return {**told, "because": error.message}
    start_s = min(
        (
            found[rank].shift_s - began_s + each.start_ns / 1e9
            for rank in ranks
            if rank in found
            for each in found[rank].actions
            if each.kind == "forward"
        ),
        default=0.0,
    )
    for place, rank in enumerate(ranks):
        mine = [bar for bar in bars if bar.rank == place]
        busy_s = sum(bar.end_s - bar.start_s for bar in mine)
        told["ranks"].append(
            {
                "rank": rank,
                "bubble_ratio": _ratio(1 - busy_s / times.end) if times.end else None,
                "actions": _bars(mine, start_s),
            }
        )
    return {**told, "length_s": _s(times.end)}


def _bars(bars: Sequence[Bar], start_s: float) -> Json:
    return {
        "kind": [KINDS[bar.action.kind] for bar in bars],
        "stage": [bar.action.stage for bar in bars],
        "number": [bar.action.micro_batch for bar in bars],
        "start_s": [_s(start_s + bar.start_s) for bar in bars],
        "end_s": [_s(start_s + bar.end_s) for bar in bars],
    }


def _costs(pipeline: Sequence[Timeline], num_stages: int) -> Costs:
    """Return what the stages' actions took: medians over the micro-batches.

    Raises:
        UserError: of some stage nothing was measured.
    """
    took: dict[tuple[str, int], list[float]] = {}
    for timeline in pipeline:
        for each in timeline.actions:
            took.setdefault((each.kind, each.stage), []).append((each.end_ns - each.start_ns) / 1e9)

    def typical(kind: str, stage: int) -> float | None:
        seen = took.get((kind, stage))
        return median(seen) if seen else None

    forward, backward, weights = [], [], []
    for stage in range(num_stages):
        first, whole = typical("forward", stage), typical("backward", stage)
        of_input, of_weights = typical("input", stage), typical("weights", stage)
        if of_input is not None and of_weights is not None:
            weights.append(of_weights / max(1e-12, of_input + of_weights))
            whole = whole if whole is not None else of_input + of_weights
        if first is None or whole is None:
            raise UserError(f"nothing was recorded of stage {stage}")
        forward.append(first)
        backward.append(whole)
    share = median(weights) if weights else 0.5
    return Costs.without_links(forward, backward, weights=share)


def instant_of(seconds: float) -> str:
    """Return an instant, given in seconds since the epoch, in RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _s(seconds: float) -> float:
    return round(seconds, 9)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
