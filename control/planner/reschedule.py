"""Schedules with several stages to a place, or with backwards in two halves: tried on the plan that
plain ones have given, for its nodes, order and shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from control.planner.best import Best
from control.planner.choices import SIMPLE, is_proven
from control.planner.cost import Model
from control.planner.setting import Draft, Pipe, Setting
from trainmaster.plan import even_split
from trainmaster.schedules import KNOWN, named

VIRTUAL = 2
MOST_ACTIONS = 40_000
"""Of a simulation: beyond it these schedules are not tried."""

_MOVES = 40


def rescheduled(model: Model, best: Best) -> bool:
    """Improve `best` by another schedule; return whether there was any to try."""
    others = [name for name in model.scenario.schedules if name not in SIMPLE]
    if best.draft is None or not others or best.draft.stages == 1:
        return bool(others)
    plain = best.draft
    for name in others:
        for draft in _drafts(model, plain, name):
            if model.fits(draft):
                best.offer(draft, model.verdict(draft))
    if best.draft.setting.virtual > 1:
        _climb(model, best)
    return True


def _drafts(model: Model, plain: Draft, name: str) -> Iterator[Draft]:
    """Yield the draft under another schedule, as far as that can be made for its numbers."""
    virtual = KNOWN[name].virtual or VIRTUAL
    setting = plain.setting._replace(schedule=name, virtual=virtual)
    actions = sum(3 * len(pipe.layers) * virtual * pipe.micro_batches for pipe in plain.pipes)
    if not is_proven(setting) or actions > MOST_ACTIONS:
        return
    pipes = []
    for pipe in plain.pipes:
        ranks = len(pipe.kinds)
        if min(pipe.layers) < virtual or ranks * virtual > model.scenario.max_stages * virtual:
            return
        if named(name).refusal(ranks=ranks, virtual=virtual, micro_batches=pipe.micro_batches):
            return
        pipes.append(_dealt(pipe, setting))
    yield replace(plain, setting=setting, pipes=tuple(pipes))


def _dealt(pipe: Pipe, setting: Setting) -> Pipe:
    """Cut each place's layers into its stages."""
    places = setting.places(len(pipe.kinds) * setting.virtual)
    parts = [list(even_split(count, setting.virtual)) for count in pipe.layers]
    layers = tuple(parts[place].pop() for place in places)
    return pipe._replace(kinds=tuple(pipe.kinds[place] for place in places), layers=layers)


def _climb(model: Model, best: Best) -> None:
    """Move single layers between stages as long as that helps."""
    for _ in range(_MOVES):
        assert best.draft is not None
        if not any(_offered(model, best, draft) for draft in list(_moved(best.draft))):
            return


def _offered(model: Model, best: Best, draft: Draft) -> bool:
    return model.fits(draft) and best.offer(draft, model.verdict(draft))


def _moved(draft: Draft) -> Iterator[Draft]:
    for at, pipe in enumerate(draft.pipes):
        for source in range(len(pipe.layers)):
            for target in range(len(pipe.layers)):
                if source == target or pipe.layers[source] < 2:
                    continue
                layers = list(pipe.layers)
                layers[source] -= 1
                layers[target] += 1
                changed = pipe._replace(layers=tuple(layers))
                yield replace(draft, pipes=(*draft.pipes[:at], changed, *draft.pipes[at + 1 :]))
