"""What the places of a pipeline need of memory: parameters with all that goes with them, and the
activations of the micro-batches in flight.
"""

from __future__ import annotations

from control.planner import simulate
from control.planner.scenario import Scenario
from control.planner.setting import Pipe, Setting
from trainmaster.schedules import order_of


def needs(scenario: Scenario, pipe: Pipe, setting: Setting, replicas: int) -> tuple[float, ...]:
    """Return the bytes that each place of a pipeline needs."""
    layers = scenario.layers
    params, kept = layers.sums[1], scenario.kept[setting.recompute]
    states = scenario.states_of(setting.zero, offload=setting.offload)
    per_param, whole = states.per_param(replicas), states.whole * float(layers.params.max())
    found, low, last = [], 0, len(pipe.kinds)
    peaks = _peaks(pipe, setting) if setting.schedule not in {"1f1b", "gpipe"} else []
    for stage, count in enumerate(pipe.layers):
        end = low + count
        held = pipe.micro_batches
        if setting.schedule == "1f1b":
            held = min(held, last - stage)
        elif setting.schedule != "gpipe":
            held = peaks[stage]
        in_flight = held * float(kept[end] - kept[low])
        if setting.recompute != "none":
            in_flight += float(layers.act[low:end].max())
        found.append(
            float(params[end] - params[low]) * per_param
            + setting.micro_batch * in_flight
            + scenario.fixed
        )
        low = end
    if setting.virtual == 1:
        return tuple(each + whole for each in found)
    by_place = [0.0] * (last // setting.virtual)
    for stage, place in enumerate(setting.places(last)):
        by_place[place] += found[stage] - scenario.fixed
    return tuple(each + scenario.fixed + whole for each in by_place)


def host_needs(
    scenario: Scenario, pipe: Pipe, setting: Setting, replicas: int
) -> tuple[float, ...]:
    """Return the bytes that each place needs of its host."""
    states = scenario.states_of(setting.zero, offload=setting.offload)
    if not states.on_host:
        return (0.0,) * (len(pipe.kinds) // setting.virtual)
    per_param = states.on_host / (replicas if setting.zero else 1)
    params, low = scenario.layers.sums[1], 0
    by_place = [0.0] * (len(pipe.kinds) // setting.virtual)
    for place, count in zip(setting.places(len(pipe.kinds)), pipe.layers, strict=True):
        by_place[place] += per_param * float(params[low + count] - params[low])
        low += count
    return tuple(by_place)


def _peaks(pipe: Pipe, setting: Setting) -> list[int]:
    """Return how many micro-batches each stage holds at most."""
    stages = len(pipe.kinds)
    ranks = stages // setting.virtual
    order = order_of(setting.schedule, ranks, setting.virtual, pipe.micro_batches)
    return simulate.in_flight_by_stage(order, stages)
