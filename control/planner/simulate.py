"""The exact event simulation of one pipeline on unequal stages and directed links.

A rank does its actions strictly in order, one at a time, each as early as its inputs allow. A
directed link carries one message at a time, first come, first served; sending blocks no compute.
All times are seconds. Since a link is fed by one rank alone, messages enter it in that rank's
order, so one sweep along the dependencies gives the exact times, without a queue of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.schedules import fused, order_of, stage_rank
from trainmaster.sequences import Action, Kind

PERIOD_TOLERANCE = 1e-13
"""Relative to the time reached: below it, two times are the same."""

_LONGEST_PERIOD = 12
_EVERY = 4
"""Turns between two looks for a period."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a pipeline's parts take, in seconds; one entry per stage, or per cut between stages.

    Attributes:
        forward: of one micro-batch.
        backward: of one micro-batch, both halves.
        down: the time for which an activation occupies the link to the next stage.
        down_lat: what it needs beyond that to arrive.
        up: as `down`, for a gradient to the stage before.
        up_lat: likewise.
        weights: the share of a backward that gives the weights' gradients.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    down: tuple[float, ...] = ()
    down_lat: tuple[float, ...] = ()
    up: tuple[float, ...] = ()
    up_lat: tuple[float, ...] = ()
    weights: float = 0.5

    @classmethod
    def without_links(
        cls, forward: Sequence[float], backward: Sequence[float], *, weights: float = 0.5
    ) -> Costs:
        """Return costs in which messages arrive at once."""
        free = (0.0,) * (len(forward) - 1)
        return cls(tuple(forward), tuple(backward), free, free, free, free, weights)


class Times(NamedTuple):
    """When a pipeline ends, and when each of its stages has done its last backward."""

    end: float
    stage_ends: tuple[float, ...]


def one_f_one_b(costs: Costs, micro_batches: int) -> Times:
    """Return the times of 1F1B, also with fewer micro-batches than stages."""
    if len(costs.forward) == 1:
        end = micro_batches * (costs.forward[0] + costs.backward[0])
        return Times(end, (end,))
    return _Turns(costs, micro_batches).run()


class _Turns:
    """1F1B turn by turn: turn k of a stage is forward k + (its forwards ahead), then backward k.

    All that a turn depends on is the turn before, so once a state comes back, only later, it comes
    back for ever: whole periods are then skipped, up to the last turn with a forward everywhere.
    """

    def __init__(self, costs: Costs, micro_batches: int) -> None:
        self._costs, self._n = costs, micro_batches
        self._last = len(costs.forward) - 1
        self._ahead = [min(micro_batches, self._last - at) for at in range(self._last + 1)]
        self._free = [0.0] * (self._last + 1)
        self._down_free, self._up_free = [0.0] * self._last, [0.0] * self._last
        self._down: list[deque[float]] = [deque() for _ in range(self._last + 1)]
        self._up: list[deque[float]] = [deque() for _ in range(self._last + 1)]

    def run(self) -> Times:
        """Return when all is done."""
        full = self._n - self._ahead[0]  # turns below this one have a forward on every stage
        states: deque[list[float]] = deque(maxlen=_LONGEST_PERIOD + 1)
        turn = -self._ahead[0]
        while turn < self._n:
            self._forwards(turn)
            if turn >= 0:
                self._backwards()
            if 0 <= turn < full - 1:
                states.append(self._free + self._down_free + self._up_free)
                if turn % _EVERY == 0:
                    period, gain = _period(states)
                    periods = (full - 1 - turn) // period if period else 0
                    if periods:
                        turn += periods * period
                        self._shift(gain * periods)
                        states.clear()
            turn += 1
        return Times(max(self._free), tuple(self._free))

    def _forwards(self, turn: int) -> None:
        costs, free, last, ahead = self._costs, self._free, self._last, self._ahead
        for stage in range(last + 1):
            if not 0 <= turn + ahead[stage] < self._n:
                continue
            start = free[stage]
            if stage and (arrived := self._down[stage].popleft()) > start:
                start = arrived
            free[stage] = end = start + costs.forward[stage]
            if stage < last:
                sent = max(end, self._down_free[stage]) + costs.down[stage]
                self._down_free[stage] = sent
                self._down[stage + 1].append(sent + costs.down_lat[stage])

    def _backwards(self) -> None:
        costs, free, last = self._costs, self._free, self._last
        for stage in range(last, -1, -1):
            start = free[stage]
            if stage < last and (arrived := self._up[stage].popleft()) > start:
                start = arrived
            free[stage] = end = start + costs.backward[stage]
            if stage:
                sent = max(end, self._up_free[stage - 1]) + costs.up[stage - 1]
                self._up_free[stage - 1] = sent
                self._up[stage - 1].append(sent + costs.up_lat[stage - 1])

    def _shift(self, by: float) -> None:
        self._free = [each + by for each in self._free]
        self._down_free = [each + by for each in self._down_free]
        self._up_free = [each + by for each in self._up_free]
        self._down = [deque(each + by for each in queue) for queue in self._down]


def _period(states: deque[list[float]]) -> tuple[int, float]:
    """Return (p, gain) if the last state is the one p turns before, `gain` seconds later; (0, 0) if
    there is none.
    """
    now = states[-1]
    tolerance = PERIOD_TOLERANCE * now[0]
    for period in range(1, len(states)):
        before = states[-1 - period]
        gain = now[0] - before[0]
        for early, late in zip(before, now, strict=True):
            if abs(late - early - gain) > tolerance:
                break
        else:
            return period, gain
    return 0, 0.0


def gpipe(costs: Costs, micro_batches: int) -> Times:
    """Return the times of GPipe: all forwards, then all backwards in the same order."""
    last = len(costs.forward) - 1
    free = [0.0] * (last + 1)
    arrivals = [0.0] * micro_batches
    for stage in range(last + 1):
        arrivals, free[stage] = _wave(
            arrivals,
            0.0,
            costs.forward[stage],
            costs.down[stage] if stage < last else 0.0,
            costs.down_lat[stage] if stage < last else 0.0,
        )
    arrivals = [0.0] * micro_batches
    ends = [0.0] * (last + 1)
    for stage in range(last, -1, -1):
        arrivals, ends[stage] = _wave(
            arrivals,
            free[stage],
            costs.backward[stage],
            costs.up[stage - 1] if stage else 0.0,
            costs.up_lat[stage - 1] if stage else 0.0,
        )
    return Times(max(ends), tuple(ends))


def _wave(
    arrivals: list[float], free: float, takes: float, link: float, lat: float
) -> tuple[list[float], float]:
    """Return when the next stage hears of each micro-batch, and when this one is done."""
    heard = []
    link_free = 0.0
    for arrival in arrivals:
        free = max(free, arrival) + takes
        link_free = max(free, link_free) + link
        heard.append(link_free + lat)
    return heard, free


class Bar(NamedTuple):
    """One bar of a Gantt chart: what `rank` of a pipeline does from `start_s` to `end_s`."""

    rank: int
    action: Action
    start_s: float
    end_s: float


def run(
    name: str, costs: Costs, ranks: int, virtual: int, micro_batches: int
) -> tuple[Times, list[Bar]]:
    """Return the times of any known schedule, and each action with its start and end.

    Adjacent halves of a backward run as one, as torch runs them. Stages on the same rank hand over
    at once.

    Raises:
        UserError: the schedule cannot be made for these numbers.
    """
    order = [fused(sequence) for sequence in order_of(name, ranks, virtual, micro_batches)]
    return run_order(name, order, costs, virtual)


def run_order(
    name: str, order: Sequence[Sequence[Action]], costs: Costs, virtual: int
) -> tuple[Times, list[Bar]]:
    """As `run`, for an order at hand: one that is complete and never waits for ever."""
    ranks, num_stages = len(order), len(costs.forward)
    home = [stage_rank(name, ranks, virtual, stage) for stage in range(num_stages)]
    arrived: dict[tuple[int, bool, int], float] = {}
    free = [0.0] * ranks
    link_free: dict[tuple[int, int], float] = {}
    ends = [0.0] * num_stages
    bars: list[Bar] = []
    position = [0] * ranks
    left = sum(len(sequence) for sequence in order)
    while left:
        for rank, sequence in enumerate(order):
            while position[rank] < len(sequence):
                action = sequence[position[rank]]
                stage, kind, micro_batch = action
                is_forward = kind is Kind.FORWARD
                needs_input = kind is not Kind.BACKWARD_WEIGHT and (
                    stage > 0 if is_forward else stage < num_stages - 1
                )
                start = free[rank]
                if needs_input:
                    arrival = arrived.get((stage, is_forward, micro_batch))
                    if arrival is None:
                        break
                    start = max(start, arrival)
                end = start + _takes(costs, stage, kind)
                free[rank] = end
                bars.append(Bar(rank, action, start, end))
                if not is_forward:
                    ends[stage] = end
                target = stage + 1 if is_forward else stage - 1
                if kind is not Kind.BACKWARD_WEIGHT and 0 <= target < num_stages:
                    arrived[(target, is_forward, micro_batch)] = _sent(
                        costs, link_free, home, stage, target, end
                    )
                position[rank] += 1
                left -= 1
    return Times(max(free), tuple(ends)), bars


def _takes(costs: Costs, stage: int, kind: Kind) -> float:
    match kind:
        case Kind.FORWARD:
            return costs.forward[stage]
        case Kind.BACKWARD:
            return costs.backward[stage]
        case Kind.BACKWARD_WEIGHT:
            return costs.backward[stage] * costs.weights
        case Kind.BACKWARD_INPUT:
            return costs.backward[stage] * (1 - costs.weights)


def _sent(
    costs: Costs,
    link_free: dict[tuple[int, int], float],
    home: Sequence[int],
    stage: int,
    target: int,
    produced: float,
) -> float:
    """Return when what `stage` has produced arrives at `target`."""
    link = (home[stage], home[target])
    if link[0] == link[1]:
        return produced
    cut = min(stage, target)
    takes, lat = (
        (costs.down[cut], costs.down_lat[cut])
        if target > stage
        else (costs.up[cut], costs.up_lat[cut])
    )
    done = max(produced, link_free.get(link, 0.0)) + takes
    link_free[link] = done
    return done + lat


def in_flight_by_stage(order: Sequence[Sequence[Action]], stages: int) -> list[int]:
    """Return how many micro-batches each stage holds at most."""
    held, peaks = [0] * stages, [0] * stages
    for sequence in order:
        for action in sequence:
            if action.kind is Kind.FORWARD:
                held[action.stage] += 1
                peaks[action.stage] = max(peaks[action.stage], held[action.stage])
            elif action.kind is not Kind.BACKWARD_INPUT:
                held[action.stage] -= 1
    return peaks


def in_flight(order: Sequence[Sequence[Action]]) -> list[int]:
    """Return how many activations each rank holds at most, in units of one stage's: from its
    forward until its weights' gradients are done.
    """
    peaks = []
    for sequence in order:
        held = peak = 0
        for action in sequence:
            if action.kind is Kind.FORWARD:
                held += 1
                peak = max(peak, held)
            elif action.kind is not Kind.BACKWARD_INPUT:
                held -= 1
        peaks.append(peak)
    return peaks
