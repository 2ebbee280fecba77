"""Why this plan: what limits it, what would change it, what was rejected, as sentences and numbers.

Every sentence is computed from the plan at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from control.planner import contention
from control.planner.alternatives import (
    Rejected,
    Sensitivity,
    rejected,
    sensitivities,
    unused_kinds,
    with_node,
)
from control.planner.contention import Crowd
from control.planner.placing import Placed
from control.planner.scenario import unlinked
from control.planner.search import Found
from control.planner.setting import Pipe
from control.planner.textbook import daly_interval_s, young_interval_s

TIGHT = 0.9
"""Of a node's memory or a step's time: beyond it, a warning or a limit that binds."""

MOST_TRIED = 4
"""Kinds of unused nodes for which plans with one more of them are sought."""


class Load(NamedTuple):
    """A part of the plan and for how long of a step it is busy, in seconds."""

    part: str
    busy_s: float


class Share(NamedTuple):
    """Where one node's time goes, as shares of a step that add up to 1."""

    node: str
    compute: float
    recompute: float
    all_reduce: float
    update: float
    idle: float


class Room(NamedTuple):
    """What a stage needs of its node's memory, in bytes."""

    node: str
    need: float
    have: float


class Unused(NamedTuple):
    """Nodes of one kind that are left out, and the best step with one more of them; None where that
    was not tried.
    """

    nodes: tuple[str, ...]
    step_s: float | None


@dataclass(frozen=True)
class Explanation:
    """All that is told of a plan beside the plan."""

    why: tuple[str, ...]
    warnings: tuple[str, ...]
    loads: tuple[Load, ...]
    shares: tuple[Share, ...]
    rooms: tuple[Room, ...]
    rejected: tuple[Rejected, ...]
    unused: tuple[Unused, ...]
    sensitivities: tuple[Sensitivity, ...]
    bubble_ratio: float
    exposed_sync_ratio: float

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; a plan that does not fit takes null seconds."""
        return {
            "warnings": list(self.warnings),
            "loads": [each._asdict() for each in self.loads],
            "node_shares": [each._asdict() for each in self.shares],
            "memory": [each._asdict() for each in self.rooms],
            "unused": [
                {"nodes": list(each.nodes), "step_time_s": _finite(each.step_s)}
                for each in self.unused
            ],
            "sensitivities": [
                {"change": each.change, "step_time_s": _finite(each.step_s)}
                for each in self.sensitivities
            ],
            "bubble_ratio": self.bubble_ratio,
            "exposed_sync_ratio": self.exposed_sync_ratio,
        }


def explain(found: Found, nodes: Placed) -> Explanation:
    """Return why `found` is what it is.

    Args:
        nodes: for each pipe of the draft, for each of its copies, the node of each stage.
    """
    loads = _loads(found, nodes)
    shares = _shares(found, nodes)
    rooms = _rooms(found, nodes)
    others = tuple(rejected(found))
    unused = tuple(_unused(found, nodes))
    felt = tuple(sensitivities(found))
    step_s = found.verdict.step_s
    exposed = max(0.0, found.verdict.sync_end_s - max(found.verdict.pipe_s)) / step_s
    bubble = sum(share.idle for share in shares) / len(shares)
    return Explanation(
        why=(
            _quality(found),
            *_steadiness(found),
            *_bottleneck(found, loads, exposed),
            *contention.told(found.draft, found.scenario, nodes),
            *_failures(found),
            *_textbook(found),
            *_felt(step_s, felt),
            *_others(step_s, others),
            *_left_out(step_s, unused),
            *_binding(rooms),
        ),
        warnings=tuple(_warnings(found, bubble, exposed, rooms)),
        loads=loads[:8],
        shares=shares,
        rooms=rooms,
        rejected=others,
        unused=unused,
        sensitivities=felt,
        bubble_ratio=bubble,
        exposed_sync_ratio=exposed,
    )


def _steadiness(found: Found) -> Iterator[str]:
    doubt, spread = found.scenario.doubt, found.spread
    if doubt is None or spread is None:
        return
    told = (
        f"With figures {doubt.sigma:.0%} off, a step takes at most {spread.p90_s:.4g} s in nine of "
        f"ten of {doubt.samples} samples"
    )
    if spread.p90_s < spread.fastest_p90_s:
        told += f"; the plan that is best as they stand, {spread.fastest_p90_s:.4g} s"
    yield f"{told}."


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _named(found: Found, nodes: Placed) -> list[tuple[Pipe, list[str], Crowd]]:
    """Return one copy of each pipe, with the names of its nodes, and who shares its links."""
    names, draft = found.scenario.names, found.draft
    return [
        (pipe, [names[copies[0][place]] for place in draft.setting.places(len(pipe.kinds))], crowd)
        for pipe, copies, crowd in zip(draft.pipes, nodes, found.model.crowds(draft), strict=True)
    ]


def _loads(found: Found, nodes: Placed) -> tuple[Load, ...]:
    loads = []
    for pipe, names, crowd in _named(found, nodes):
        costs = found.model.costs(pipe, found.draft.setting, (), crowd)
        n = pipe.micro_batches
        for stage, name in enumerate(names):
            busy = n * (costs.forward[stage] + costs.backward[stage])
            loads.append(Load(f"{name} ({pipe.layers[stage]} layers)", busy))
        for cut in range(len(names) - 1):
            loads.append(Load(f"link {names[cut]} to {names[cut + 1]}", n * costs.down[cut]))
            loads.append(Load(f"link {names[cut + 1]} to {names[cut]}", n * costs.up[cut]))
    if found.draft.replicas > 1:
        loads.append(Load("the sum of gradients", found.verdict.sync_busy_s))
    return tuple(sorted(loads, key=lambda load: (-load.busy_s, load.part)))


def _shares(found: Found, nodes: Placed) -> tuple[Share, ...]:
    shares = []
    step_s, setting = found.verdict.step_s, found.draft.setting
    for pipe, names, crowd in _named(found, nodes):
        costs = found.model.costs(pipe, setting)
        times = found.model.times(pipe, setting, (), crowd)
        for stage, name in enumerate(names):
            again = pipe.micro_batches * costs.forward[stage]
            again *= found.scenario.computed_again(setting.recompute)
            busy = pipe.micro_batches * (costs.forward[stage] + costs.backward[stage])
            update = found.verdict.update_s
            after = step_s - update - times.stage_ends[stage]
            sums = min(after, _sums(found, pipe, stage)) if found.draft.replicas > 1 else 0.0
            parts = (busy - again, again, sums, update, step_s - busy - sums - update)
            shares.append(Share(name, *(part / step_s for part in parts)))
    return tuple(shares)


def _sums(found: Found, pipe: Pipe, stage: int) -> float:
    """Return for how long a stage takes part in sums of gradients, at most."""
    s, replicas = found.scenario, found.draft.replicas
    first = sum(pipe.layers[:stage])
    size = s.grad_bytes * float(s.layers.params[first : first + pipe.layers[stage]].sum())
    whole = s.grad_bytes * float(s.layers.params.sum())
    return found.verdict.sync_busy_s * size / whole if whole and replicas > 1 else 0.0


def _rooms(found: Found, nodes: Placed) -> tuple[Room, ...]:
    return tuple(
        Room(name, need, found.scenario.kinds[kind].mem)
        for pipe, names, _ in _named(found, nodes)
        for name, kind, need in zip(
            names,
            pipe.kinds,
            found.model.memory(pipe, found.draft.setting, found.draft.replicas),
            strict=False,
        )
    )


def _unused(found: Found, nodes: Placed) -> list[Unused]:
    used = {node for copies in nodes for copy in copies for node in copy}
    told, rest = [], []
    fastest = sorted(unused_kinds(found), key=lambda each: -found.scenario.speed[each[0]])
    for position, (kind, _) in enumerate(fastest):
        left = [node for node in found.scenario.members[kind] if node not in used]
        names = [found.scenario.names[node] for node in left]
        if position < MOST_TRIED:
            steps = [found.model.verdict(draft).step_s for draft in with_node(found, kind)]
            told.append(Unused(tuple(names), min(steps, default=math.inf)))
        else:
            rest += names
    return [*told, Unused(tuple(rest), None)] if rest else told


def _quality(found: Found) -> str:
    step_s = found.verdict.step_s
    samples = found.scenario.global_batch / step_s
    if found.exact:
        judged = "No better plan exists under this cost model: every plan was tried or ruled out."
    else:
        judged = (
            f"No plan can take less than {found.bound.step_s:.6g} s, since {found.bound.because}; "
            f"this one is {found.gap:.1%} above."
        )
    return f"A step takes {step_s:.6g} s, {samples:.4g} samples/s. {judged}"


def _bottleneck(found: Found, loads: Sequence[Load], exposed: float) -> list[str]:
    step_s = found.verdict.step_s
    first = loads[0]
    told = f"The bottleneck is {first.part}, busy for {first.busy_s / step_s:.0%} of the step"
    if len(loads) > 1:
        second = loads[1]
        slack = (first.busy_s - second.busy_s) / step_s
        told += f"; next is {second.part} with {second.busy_s / step_s:.0%}, {slack:.1%} less"
    sentences = [told + "."]
    if found.draft.replicas > 1:
        sentences.append(
            f"Summing gradients ends {exposed:.1%} of the step after the last backward."
        )
    return sentences


def _failures(found: Found) -> list[str]:
    """What checkpoints and failures cost, with the intervals that people know."""
    s, saving = found.scenario, found.saving
    if saving is None:
        return []
    step_s, stall_s = found.verdict.step_s, s.stall_s
    told = (
        f"One of its nodes fails every {saving.mtbf_s:.4g} s; a checkpoint every "
        f"{saving.every_steps} steps ({saving.every_steps * step_s:.4g} s) and failures cost "
        f"{saving.overhead:.1%} beside the steps. Young's interval is sqrt(2 C M) = "
        f"{young_interval_s(stall_s, saving.mtbf_s):.4g} s, Daly's "
        f"{daly_interval_s(stall_s, saving.mtbf_s):.4g} s, for a stall of {stall_s:.4g} s."
    )
    return [told]


def _textbook(found: Found) -> list[str]:
    """The formulas that people know, with what they mean here."""
    draft = found.draft
    sentences = []
    longest = max(draft.pipes, key=lambda pipe: len(pipe.kinds))
    p, n = len(longest.kinds), longest.micro_batches
    if p > 1:
        costs = found.model.costs(longest, draft.setting)
        ideal = n * max(f + b for f, b in zip(costs.forward, costs.backward, strict=True))
        end = found.model.times(longest, draft.setting).end
        sentences.append(
            f"With {p} equal stages and {n} micro-batches the bubble would be (p-1)/m = "
            f"{(p - 1) / n:.1%} on top of the ideal time, (p-1)/(m+p-1) = "
            f"{(p - 1) / (n + p - 1):.1%} of the whole; simulated on these stages it is "
            f"{end / ideal - 1:.1%} on top of the slowest stage's own work."
        )
    if draft.replicas > 1 and draft.setting.zero < 3:
        r = draft.replicas
        sentences.append(
            f"A ring over {r} replicas has each node send 2(n-1)/n = {2 * (r - 1) / r:.4g} times "
            f"its gradients, in {2 * (r - 1)} hops."
        )
    return sentences


def _felt(step_s: float, felt: Sequence[Sensitivity]) -> list[str]:
    parts = []
    for each in felt:
        if not math.isfinite(each.step_s):
            continue
        if each.change == "twice the global batch":
            parts.append(f"{each.change}: {2 * step_s / each.step_s - 1:+.1%} samples/s")
        else:
            parts.append(f"{each.change}: {step_s / each.step_s - 1:+.1%}")
    return [f"What would change the throughput: {'; '.join(parts)}."] if parts else []


def _others(step_s: float, others: Sequence[Rejected]) -> list[str]:
    return [
        f"Rejected, {each.family} ({each.because}): "
        + (
            f"{each.step_s:.6g} s, {each.step_s / step_s:.2f} times as long."
            if math.isfinite(each.step_s)
            else "it fits in no way."
        )
        for each in others
    ]


def _left_out(step_s: float, unused: Sequence[Unused]) -> list[str]:
    sentences = []
    for each in unused:
        names = ", ".join(each.nodes[:4]) + (
            f" and {len(each.nodes) - 4} more" if len(each.nodes) > 4 else ""
        )
        verb = "is" if len(each.nodes) == 1 else "are"
        if each.step_s is None:
            sentences.append(f"{names} {verb} not used either: they are slower still.")
        elif not math.isfinite(each.step_s):
            sentences.append(f"{names} {verb} not used: no plan with one more of them fits.")
        else:
            longer = each.step_s / step_s - 1
            what = f"{longer:.1%} longer" if longer > 1e-9 else "no shorter"
            sentences.append(
                f"{names} {verb} not used: with one more of them the step would take "
                f"{each.step_s:.6g} s, {what}."
            )
    return sentences


def _binding(rooms: Sequence[Room]) -> list[str]:
    tight = [room for room in rooms if room.need > TIGHT * room.have]
    return [
        f"Memory binds on {room.node}: {room.need / 1e9:.3g} of {room.have / 1e9:.3g} GB."
        for room in tight[:6]
    ]


def _warnings(found: Found, bubble: float, exposed: float, rooms: Sequence[Room]) -> list[str]:
    told = list(found.scenario.warnings)
    for pipe in found.draft.pipes:
        if len(pipe.kinds) > 1 and pipe.micro_batches < 4 * len(pipe.kinds):
            told.append(
                f"{pipe.micro_batches} micro-batches for {len(pipe.kinds)} stages: below four per "
                "stage the bubble is large"
            )
            break
    if bubble > 0.2:
        told.append(f"nodes idle for {bubble:.0%} of the step")
    if exposed > 0.2:
        told.append(f"{exposed:.0%} of the step is spent summing gradients after the backward")
    tight = [room.node for room in rooms if room.need > TIGHT * room.have]
    if tight:
        told.append(f"more than {TIGHT:.0%} of the memory is needed on {', '.join(tight[:6])}")
    apart = unlinked(found.scenario)
    if apart:
        told.append(f"no links join {', '.join(apart[:6])} to any other node, there and back")
    if found.stopped:
        told.append("the search was cut short: a better plan may exist")
    return told
