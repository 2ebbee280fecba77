"""Local search: a draft is changed a little, simulated, and kept when it is better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from control.planner.best import Best, offer
from control.planner.choices import loosest, settings
from control.planner.cost import Model
from control.planner.fit import Shape, climb
from control.planner.seeds import judge
from control.planner.setting import Draft, Pipe


def refine(model: Model, best: Best, *, tries: int, stop: Callable[[], bool]) -> int:
    """Improve `best` by small changes, the first that helps at a time; return how many were tried.

    Ends when no change helps, after `tries` drafts, or when stopped.
    """
    tried = 0
    while best.draft is not None:
        helped = False
        for change in _changes(model, best.draft):
            tried += 1
            if change(best):
                helped = True
                break
            if tried >= tries or stop():
                return tried
        if not helped or tried >= tries:
            return tried
    return tried


Change = Callable[[Best], bool]


def _changes(model: Model, draft: Draft) -> Iterator[Change]:
    yield from _moved_shares(model, draft)
    yield from _moved_layers(model, draft)
    yield from _moved_stages(model, draft)
    yield from _moved_nodes(model, draft)
    yield from _regrouped(model, draft)
    yield from _reset(model, draft)


def _offering(model: Model, draft: Draft) -> Change:
    return lambda best: offer(model, draft, best)


def _with(draft: Draft, at: int, *pipes: Pipe) -> Draft:
    """Return `draft` with the pipe at `at` replaced by others, equal ones joined."""
    counts: dict[tuple[tuple[int, ...], tuple[int, ...], int], int] = {}
    for pipe in (*draft.pipes[:at], *pipes, *draft.pipes[at + 1 :]):
        counts[pipe[:3]] = counts.get(pipe[:3], 0) + pipe.copies
    return Draft(draft.setting, tuple(Pipe(*key, count) for key, count in counts.items() if count))


def _moved_shares(model: Model, draft: Draft) -> Iterator[Change]:
    """One micro-batch from one pipeline to another; the latest ones give first."""
    if draft.replicas == 1:
        return
    ends = [model.times(pipe, draft.setting).end for pipe in draft.pipes]
    order = sorted(range(len(ends)), key=lambda at: -ends[at])
    for giver in order[:3]:
        for taker in reversed(order):
            one, other = draft.pipes[giver], draft.pipes[taker]
            if giver == taker or one.micro_batches < 2 or one.copies > 1:
                continue
            changed = list(draft.pipes)
            changed[giver] = one._replace(micro_batches=one.micro_batches - 1)
            changed[taker] = other._replace(copies=other.copies - 1)
            changed.append(other._replace(micro_batches=other.micro_batches + 1, copies=1))
            whole = Draft(draft.setting, tuple(pipe for pipe in changed if pipe.copies))
            yield _offering(model, _with(whole, 0, whole.pipes[0]))


def _moved_layers(model: Model, draft: Draft) -> Iterator[Change]:
    """One layer across a cut, in all pipelines of a pipe; then one layer over two cuts."""
    for hop in (1, 2):
        for at, pipe in enumerate(draft.pipes):
            for stage in range(len(pipe.layers) - hop):
                for source, target in ((stage, stage + hop), (stage + hop, stage)):
                    if pipe.layers[source] > 1:
                        layers = list(pipe.layers)
                        layers[source] -= 1
                        layers[target] += 1
                        changed = pipe._replace(layers=tuple(layers))
                        yield _offering(model, _with(draft, at, changed))


def _moved_stages(model: Model, draft: Draft) -> Iterator[Change]:
    """Two neighbouring stages of different kinds swapped, with their layers."""
    for at, pipe in enumerate(draft.pipes):
        for stage in range(len(pipe.kinds) - 1):
            if pipe.kinds[stage] != pipe.kinds[stage + 1]:
                order = list(range(len(pipe.kinds)))
                order[stage], order[stage + 1] = order[stage + 1], order[stage]
                changed = pipe._replace(
                    kinds=tuple(pipe.kinds[each] for each in order),
                    layers=tuple(pipe.layers[each] for each in order),
                )
                yield _offering(model, _with(draft, at, changed))


def _moved_nodes(model: Model, draft: Draft) -> Iterator[Change]:
    """A node taken out of a pipe, or given to another, or taken in from those not used."""
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for pipe in draft.pipes:
        shapes[pipe[:2]] = shapes.get(pipe[:2], 0) + pipe.copies
    listed = [Shape(*key, count) for key, count in shapes.items()]
    if sum(len(shape.kinds) for shape in listed) > 40:
        return
    free = list(model.scenario.counts)
    for shape in listed:
        for kind in shape.kinds:
            free[kind] -= shape.copies
    for at, shape in enumerate(listed):
        for kind in sorted(set(shape.kinds)):
            less = _less(shape, kind)
            yield _reshaping(model, draft, listed, {at: less})
            for to, other in enumerate(listed):
                if to != at and shape.copies == other.copies:
                    yield _reshaping(model, draft, listed, {at: less, to: _more(other, kind)})
        for kind, unused in enumerate(free):
            if unused >= shape.copies:
                yield _reshaping(model, draft, listed, {at: _more(shape, kind)})
        if len(listed) > 1:
            yield _reshaping(model, draft, listed, {at: None})


def _regrouped(model: Model, draft: Draft) -> Iterator[Change]:
    """Two nodes of different pipelines swapped; two pipelines made one; one made two."""
    listed = _listed(draft)
    if sum(len(shape.kinds) for shape in listed) > 40:
        return
    for at, one in enumerate(listed):
        for to in range(at + 1, len(listed)):
            other = listed[to]
            if one.copies != other.copies:
                continue
            for mine in sorted(set(one.kinds)):
                for theirs in sorted(set(other.kinds) - {mine}):
                    swapped = {at: _swapped(one, mine, theirs), to: _swapped(other, theirs, mine)}
                    yield _reshaping(model, draft, listed, swapped)
            kinds = one.kinds + other.kinds
            if len(kinds) <= model.scenario.layers.count:
                joined = Shape(kinds, _spread(model, kinds), one.copies)
                yield _reshaping(model, draft, listed, {at: joined, to: None})
        for cut in range(1, len(one.kinds)):
            first, second = (
                Shape(kinds, _spread(model, kinds), one.copies)
                for kinds in (one.kinds[:cut], one.kinds[cut:])
            )
            yield _reshaping(model, draft, [*listed, second], {at: first})


def _reset(model: Model, draft: Draft) -> Iterator[Change]:
    """Another micro-batch, schedule, ZeRO level or recompute for the same pipelines."""
    for setting in settings(model.scenario):
        other = setting._replace(bucket=draft.setting.bucket)
        if other != draft.setting:
            yield partial(judge, model, other, _listed(draft))


def _listed(draft: Draft) -> list[Shape]:
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for pipe in draft.pipes:
        shapes[pipe[:2]] = shapes.get(pipe[:2], 0) + pipe.copies
    return [Shape(*key, copies) for key, copies in shapes.items()]


def _swapped(shape: Shape, old: int, new: int) -> Shape:
    """Return the shape with its first node of one kind replaced by one of another."""
    at = shape.kinds.index(old)
    return shape._replace(kinds=(*shape.kinds[:at], new, *shape.kinds[at + 1 :]))


def _spread(model: Model, kinds: tuple[int, ...]) -> tuple[int, ...]:
    """Return layer counts in proportion to speed, at least one each."""
    total, speed = model.scenario.layers.count, model.scenario.speed
    counts = [1] * len(kinds)
    for _ in range(total - len(kinds)):
        at = min(range(len(kinds)), key=lambda each: (counts[each] + 1) / speed[kinds[each]])
        counts[at] += 1
    return tuple(counts)


def _less(shape: Shape, kind: int) -> Shape | None:
    """Return the shape without its first node of a kind; its layers go to the neighbour."""
    if len(shape.kinds) == 1:
        return None
    at = shape.kinds.index(kind)
    to = at - 1 if at else 1
    layers = list(shape.layers)
    layers[to] += layers[at]
    return Shape(
        shape.kinds[:at] + shape.kinds[at + 1 :],
        tuple(layers[:at] + layers[at + 1 :]),
        shape.copies,
    )


def _more(shape: Shape, kind: int) -> Shape | None:
    """Return the shape with a node of a kind in front of the stage with most layers."""
    at = max(range(len(shape.layers)), key=lambda stage: shape.layers[stage])
    if shape.layers[at] < 2:
        return None
    layers = list(shape.layers)
    layers[at] -= 1
    return Shape(
        (*shape.kinds[:at], kind, *shape.kinds[at:]),
        (*layers[:at], 1, *layers[at:]),
        shape.copies,
    )


def _reshaping(
    model: Model, draft: Draft, listed: list[Shape], changed: Mapping[int, Shape | None]
) -> Change:
    def change(best: Best) -> bool:
        s, setting = model.scenario, loosest(model.scenario, draft.setting)
        replicas = sum(shape.copies for shape in listed)
        share = max(1, s.total(setting.micro_batch) // replicas)
        found = []
        for at, shape in enumerate(listed):
            if at in changed:
                new = changed[at]
                if new is None:
                    continue
                if len(new.kinds) > min(s.max_stages, s.layers.count):
                    return False
                kinds, layers, bound = climb(
                    s,
                    new.kinds,
                    new.layers,
                    setting,
                    micro_batches=share,
                    replicas=replicas,
                    reorder=len(new.kinds) <= 8,
                )
                if bound == float("inf"):
                    return False
                found.append(Shape(kinds, layers, new.copies))
            else:
                found.append(shape)
        return bool(found) and judge(model, setting, found, best)

    return change
