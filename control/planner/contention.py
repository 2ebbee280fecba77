"""Links that several flows of messages share: slots of one machine reach another machine over the
same link, so pipelines that go over it at once have a part of it each.

The part is taken to be equal, and the same all along the step. For equal pipelines, which send at
the same moments, that is what happens; for others it is the most that sharing can cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from control.planner.placing import Placed
from control.planner.scenario import Scenario
from control.planner.setting import Draft, Pipe, Setting

Flow = tuple[int, int]
"""From which place of a pipeline to which other."""


class Crowd(NamedTuple):
    """How many flows are on the link of each cut of a pipeline, this one counted: of activations,
    and of gradients. Empty where each has its own.
    """

    down: tuple[int, ...] = ()
    up: tuple[int, ...] = ()


ALONE = Crowd()


def crowds_of(draft: Draft, scenario: Scenario, placed: Placed) -> tuple[Crowd, ...]:
    """Return the crowd of each pipe: of its copies that of the fullest links."""
    alone = (ALONE,) * len(draft.pipes)
    flows = flows_of(draft, scenario, placed)
    if max(flows.values(), default=1) == 1:
        return alone
    return tuple(
        _crowd(pipe, draft.setting, scenario, copies, flows)
        for pipe, copies in zip(draft.pipes, placed, strict=True)
    )


def flows_of(draft: Draft, scenario: Scenario, placed: Placed) -> Counter[tuple[str, str]]:
    """Return (machine, machine) -> how many flows go over the link between them, that way."""
    found: Counter[tuple[str, str]] = Counter()
    for pipe, copies in zip(draft.pipes, placed, strict=True):
        cuts = _cuts(pipe, draft.setting)
        both_ways = {*cuts, *((there, here) for here, there in cuts)}
        for nodes in copies:
            hosts = [scenario.hosts[node] for node in nodes]
            found.update((hosts[a], hosts[b]) for a, b in both_ways if hosts[a] != hosts[b])
    return found


def _cuts(pipe: Pipe, setting: Setting) -> list[Flow]:
    places = setting.places(len(pipe.kinds))
    return [(places[at], places[at + 1]) for at in range(len(places) - 1)]


def _crowd(
    pipe: Pipe,
    setting: Setting,
    scenario: Scenario,
    copies: list[list[int]],
    flows: Counter[tuple[str, str]],
) -> Crowd:
    down, up = [], []
    for here, there in _cuts(pipe, setting):
        ends = [(scenario.hosts[nodes[here]], scenario.hosts[nodes[there]]) for nodes in copies]
        down.append(max(flows.get((a, b), 1) for a, b in ends))
        up.append(max(flows.get((b, a), 1) for a, b in ends))
    return Crowd(tuple(down), tuple(up))


def told(draft: Draft, scenario: Scenario, placed: Placed) -> Iterator[str]:
    """Say which link is shared by most, where one is."""
    if not scenario.has_shared_links:
        return
    flows = flows_of(draft, scenario, placed)
    most = max(flows.values(), default=1)
    if most > 1:
        first = min(link for link, number in flows.items() if number == most)
        yield (
            f"{most} flows of messages between stages share the link from {first[0]} to "
            f"{first[1]}: each is taken to have {1 / most:.0%} of it."
        )
