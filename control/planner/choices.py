"""What all pipelines of a plan may share, of what a scenario leaves open.

ZeRO 0 to 2 change nothing of what passes take: plans are sought with the one that needs least
memory, and what is found is judged with each.
"""

from __future__ import annotations

from collections.abc import Iterator

from control.planner.scenario import Scenario
from control.planner.setting import Setting
from trainmaster import cells
from trainmaster.cells import Cell, Offload, Zero

SIMPLE = ("1f1b", "gpipe")
"""Schedules with one stage to a place: all others are tried on the plan that these give."""

_LEVELS: tuple[Zero, ...] = (0, 1, 2, 3)


def settings(scenario: Scenario, *, light: bool = False) -> list[Setting]:
    """Return each combination that plans are sought with, in the order in which it is tried.

    Args:
        light: without what costs time to save memory.
    """
    s = scenario
    return [
        setting
        for b in s.micro_batches
        for schedule in s.schedules
        if schedule in SIMPLE
        for setting in savings(s, Setting(b, schedule, bucket=s.buckets[0], tensor=s.tensors[0]))
        if not light or is_light(s, setting)
    ]


def savings(scenario: Scenario, setting: Setting) -> Iterator[Setting]:
    """Yield the setting with each way to save memory, that which costs no time first."""
    for offload in sorted(scenario.offloads):
        for zero in _sought(scenario):
            for recompute in sorted(scenario.recomputes, key=cells.RECOMPUTES.index):
                found = setting._replace(zero=zero, offload=offload, recompute=recompute)
                if is_proven(found):
                    yield found


def is_light(scenario: Scenario, setting: Setting) -> bool:
    """Return whether a setting saves memory only where that costs no time."""
    return (
        setting.recompute == min(scenario.recomputes, key=cells.RECOMPUTES.index)
        and setting.offload == min(scenario.offloads)
        and setting.zero == _sought(scenario)[0]
    )


def levels(scenario: Scenario, setting: Setting) -> list[Setting]:
    """Return the settings that pipelines sought with `setting` are judged with, simplest first."""
    if setting.zero == 3:
        return [setting]
    return [setting._replace(zero=zero) for zero in sorted(scenario.zeros) if zero < 3]


def loosest(scenario: Scenario, setting: Setting) -> Setting:
    """Return the one of its levels that needs least memory."""
    return levels(scenario, setting)[-1]


def _sought(scenario: Scenario) -> list[int]:
    plain = [zero for zero in scenario.zeros if zero < 3]
    return [*([max(plain)] if plain else []), *([3] if 3 in scenario.zeros else [])]


def is_proven(setting: Setting) -> bool:
    """Return whether the runtime carries out such a setting, replicas cut alike."""
    offload: Offload = "none"
    if setting.offload:
        offload = "parameters" if setting.zero == 3 else "optimizer"
    return cells.is_proven(
        Cell(
            setting.schedule,
            _LEVELS[setting.zero],
            tensor=setting.tensor > 1,
            offload=offload,
            recompute=setting.recompute,
        )
    )
