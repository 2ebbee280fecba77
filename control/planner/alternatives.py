"""What would be otherwise: plans of other families, nodes that are not used, and small changes of
the cluster. Each is a plan that was sought and simulated, not an estimate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from control.planner.best import Best
from control.planner.choices import SIMPLE, is_proven
from control.planner.cost import Model
from control.planner.fit import Shape, climb
from control.planner.refine import refine
from control.planner.scenario import Scenario
from control.planner.search import MIDDLE, Found, mixes_of, never
from control.planner.seeds import improved, judge
from control.planner.setting import Draft, Pipe, Setting
from trainmaster.plan import even_split

GIB = 1 << 30


class Rejected(NamedTuple):
    """The best plan of a family that was not chosen; `step_s` is infinite where none fits."""

    family: str
    step_s: float
    draft: Draft | None
    because: str


class Sensitivity(NamedTuple):
    """What a step would take after a change, with the plan fitted to it."""

    change: str
    step_s: float


def sketch(scenario: Scenario, *, thorough: bool) -> Best:
    """Return a good plan, sought for less long than the chosen one."""
    model, best = Model(scenario), Best()
    for mix in mixes_of(model)[: 3 if thorough else 1]:
        judge(model, mix.setting, mix.shapes, best)
        judge(model, mix.setting, improved(model, mix.setting, mix.shapes), best)
    if thorough:
        refine(model, best, tries=40, stop=never)
    return best


def rejected(found: Found) -> list[Rejected]:
    """Return the best rejected plan of each family that the scenario leaves open."""
    s, chosen = found.scenario, found.draft
    thorough = s.num_nodes <= MIDDLE // 4
    families: list[tuple[str, Scenario, str]] = [
        (
            "data parallel only",
            s.replaced(max_stages=1),
            "every node holds the whole model and sums all gradients",
        ),
        (
            "one pipeline",
            s.replaced(max_replicas=1, min_replicas=1),
            "all micro-batches go through one row of stages",
        ),
    ]
    setting = chosen.setting
    for name, field, used in (
        ("micro-batch", "micro_batches", setting.micro_batch),
        ("schedule", "schedules", setting.schedule),
        ("ZeRO level", "zeros", setting.zero),
        ("recompute", "recomputes", setting.recompute),
        ("place of the optimizer", "offloads", setting.offload),
    ):
        others = tuple(each for each in getattr(s, field) if each != used)
        if others:
            listed = ", ".join(_named(each) for each in others)
            families.append((f"another {name}", s.replaced(**{field: others}), f"{name} {listed}"))
    tried = []
    for family, limited, because in families:
        if not _may(chosen, limited):
            tried.append(_rejected(family, sketch(limited, thorough=thorough), because))
    tried.append(
        _rejected("even split", even(found), "all nodes in order, equal layers and shares")
    )
    if chosen.nodes < s.num_nodes:
        best = every_node(found)
        tried.append(_rejected("all nodes used", best, "no node is left out"))
    return [each for each in tried if each.step_s > found.verdict.step_s * (1 - 1e-9)]


def _named(choice: object) -> str:
    if isinstance(choice, bool):
        return "the host" if choice else "the device"
    return str(choice)


def _may(draft: Draft, limited: Scenario) -> bool:
    """Whether the chosen plan itself belongs to a family."""
    setting = draft.setting
    return (
        draft.stages <= limited.max_stages
        and limited.min_replicas <= draft.replicas <= limited.max_replicas
        and setting.micro_batch in limited.micro_batches
        and setting.schedule in limited.schedules
        and setting.zero in limited.zeros
        and setting.recompute in limited.recomputes
        and setting.offload in limited.offloads
    )


def _rejected(family: str, best: Best, because: str) -> Rejected:
    return Rejected(family, best.step_s, best.draft, because)


def even(found: Found) -> Best:
    """Return the best plan that treats all nodes alike: in order, with equal layers and shares."""
    s, model, best = found.scenario, found.model, Best()
    for setting in settings_like(found):
        total = s.total(setting.micro_batch)
        for replicas in range(1, s.num_nodes + 1):
            stages = s.num_nodes // replicas
            if s.num_nodes % replicas or total % replicas or stages > s.layers.count:
                continue
            if not s.min_replicas <= replicas <= s.max_replicas or stages > s.max_stages:
                continue
            pipes: dict[tuple[int, ...], int] = {}
            for first in range(0, s.num_nodes, stages):
                kinds = tuple(s.kind_of[first : first + stages])
                pipes[kinds] = pipes.get(kinds, 0) + 1
            layers = even_split(s.layers.count, stages)
            draft = Draft(
                setting,
                tuple(
                    Pipe(kinds, layers, total // replicas, copies)
                    for kinds, copies in pipes.items()
                ),
            )
            if model.fits(draft):
                best.offer(draft, model.verdict(draft))
    return best


def settings_like(found: Found) -> list[Setting]:
    """Return the chosen setting with each ZeRO level and recompute, so that what fits is found."""
    s, setting = found.scenario, found.draft.setting
    if setting.virtual > 1:
        setting = setting._replace(schedule=SIMPLE[0], virtual=1)
    return [
        other
        for zero in s.zeros
        for recompute in s.recomputes
        for offload in s.offloads
        if is_proven(other := setting._replace(zero=zero, recompute=recompute, offload=offload))
    ]


def every_node(found: Found) -> Best:
    """Return a good plan that leaves no node out."""
    s, best = found.scenario, Best()
    model = Model(s)
    for mix in mixes_of(model):
        if sum(len(shape.kinds) * shape.copies for shape in mix.shapes) == s.num_nodes:
            judge(model, mix.setting, improved(model, mix.setting, mix.shapes), best)
            break
    for kind, unused in unused_kinds(found):
        for draft in with_node(found, kind):
            if draft.nodes == s.num_nodes and unused == 1:
                best.offer(draft, model.verdict(draft))
    return best


def unused_kinds(found: Found) -> list[tuple[int, int]]:
    """Return (kind, how many) of the nodes that the plan does not use."""
    used = found.draft.counts(len(found.scenario.kinds))
    left = [have - here for have, here in zip(found.scenario.counts, used, strict=True)]
    return [(kind, count) for kind, count in enumerate(left) if count]


def with_node(found: Found, kind: int) -> list[Draft]:
    """Return plans that use one more node of a kind: as a replica of its own, or as a stage more at
    the best place of one pipeline; only those that fit.
    """
    s, model, setting = found.scenario, found.model, found.draft.setting
    if setting.virtual > 1:
        return []
    shapes = [Shape(pipe.kinds, pipe.layers, pipe.copies) for pipe in found.draft.pipes]
    choices: list[list[Shape]] = [[*shapes, Shape((kind,), (s.layers.count,), 1)]]
    share = max(1, s.total(setting.micro_batch) // found.draft.replicas)
    for at, shape in enumerate(shapes[:8]):
        if len(shape.kinds) + 1 > min(s.max_stages, s.layers.count):
            continue
        longer = _longer(s, shape, kind, setting, share, found.draft.replicas)
        if longer is not None:
            rest = [shape._replace(copies=shape.copies - 1)] if shape.copies > 1 else []
            choices.append([*shapes[:at], *rest, longer, *shapes[at + 1 :]])
    drafts = []
    for choice in choices:
        best = Best()
        for zeroed in settings_like(found):
            judge(model, zeroed, choice, best)
        if best.draft is not None:
            drafts.append(best.draft)
    return drafts


def _longer(
    s: Scenario, shape: Shape, kind: int, setting: Setting, share: int, replicas: int
) -> Shape | None:
    best: tuple[float, Shape] | None = None
    for at in range(len(shape.kinds) + 1):
        widest = max(range(len(shape.layers)), key=lambda stage: shape.layers[stage])
        if shape.layers[widest] < 2:
            return None
        layers = list(shape.layers)
        layers[widest] -= 1
        kinds, counts, bound = climb(
            s,
            (*shape.kinds[:at], kind, *shape.kinds[at:]),
            (*layers[:at], 1, *layers[at:]),
            setting,
            micro_batches=share,
            replicas=replicas,
            reorder=False,
        )
        if bound < math.inf and (best is None or bound < best[0]):
            best = bound, Shape(kinds, counts, 1)
    return best[1] if best is not None else None


def sensitivities(found: Found) -> list[Sensitivity]:
    """Return what a step would take after small changes: each type of node a tenth faster, each
    class of link a tenth wider, each node with a GiB more, twice the batch.
    """
    s = found.scenario
    changed: list[tuple[str, Scenario]] = []
    types = list(dict.fromkeys(kind.type for kind in s.kinds))
    for name in types[:6]:
        kinds = tuple(kind if kind.type != name else kind.faster(1.1) for kind in s.kinds)
        changed.append((f"{name} nodes 10 % faster", s.replaced(kinds=kinds)))
    for bw in _link_classes(s):
        wider = np.where(s.bw == bw, s.bw * 1.1, s.bw)
        changed.append((f"links of {bw:.4g} bytes/s 10 % wider", s.replaced(bw=wider)))
    roomy = tuple(replace(kind, mem=kind.mem + GIB) for kind in s.kinds)
    changed.append(("1 GiB more memory on each node", s.replaced(kinds=roomy)))
    changed.append(("twice the global batch", s.replaced(global_batch=2 * s.global_batch)))
    return [Sensitivity(name, refitted(found, scenario)) for name, scenario in changed]


def _link_classes(s: Scenario) -> list[float]:
    pairs = ~np.eye(len(s.kinds), dtype=bool) | np.diag([count > 1 for count in s.counts])
    classes = sorted({float(each) for each in s.bw[pairs] if each > 0})
    return classes if len(classes) <= 4 else []


def refitted(found: Found, scenario: Scenario) -> float:
    """Return the step of the chosen plan on another scenario, its shares and cuts fitted to it."""
    model, best, setting = Model(scenario), Best(), found.draft.setting
    if setting.virtual > 1:
        return _same(found, scenario)
    if scenario.global_batch == found.scenario.global_batch and model.fits(found.draft):
        best.offer(found.draft, model.verdict(found.draft))
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for pipe in found.draft.pipes:
        shapes[pipe[:2]] = shapes.get(pipe[:2], 0) + pipe.copies
    listed = [Shape(*key, copies) for key, copies in shapes.items()]
    judge(model, setting, listed, best)
    if found.scenario.num_nodes <= MIDDLE:
        judge(model, setting, improved(model, setting, listed, reorder=False), best)
    return best.step_s


def _same(found: Found, scenario: Scenario) -> float:
    """Return the step of the chosen plan as it is, with as many times the micro-batches."""
    times = scenario.global_batch // found.scenario.global_batch
    pipes = [each._replace(micro_batches=times * each.micro_batches) for each in found.draft.pipes]
    draft = Draft(found.draft.setting, tuple(pipes))
    model = Model(scenario)
    return model.verdict(draft).step_s if model.fits(draft) else math.inf
