"""How many steps lie between two checkpoints when nobody says so. Pure.

What a checkpoint costs (the stall) is weighed against what a failure costs (the work since the last
one): Daly (2006), "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22(3), eq. 37.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

USUAL = (100, 1000)
"""Steps between checkpoints in runs of some size; outside it a person may want to look."""
LEAST_STEPS = 10
"""Below so many steps a run is not divided further by `at_most`."""
PRIOR_NODE_S = 30 * 86400.0
"""Before anything has been observed a node is taken to fail once in so many seconds."""
SHARE_OF_RUN = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """What was measured: seconds that a checkpoint holds up training, that it takes until it is
    committed, and that a step takes.
    """

    stall_s: float
    write_s: float
    step_time_s: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Steps between two checkpoints, and why so many, as a sentence."""

    every_steps: int
    because: str

    @property
    def is_unusual(self) -> bool:
        """Whether it lies outside `USUAL`."""
        return not USUAL[0] <= self.every_steps <= USUAL[1]

    @property
    def told(self) -> str:
        """Why, and a warning where it is unusual."""
        unusual = f" Usual are {USUAL[0]} to {USUAL[1]}." if self.is_unusual else ""
        return self.because + unusual


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two checkpoints that waste the least.

    Args:
        stall_s: what one checkpoint costs.
        mtbf_s: mean time between failures of all that the run needs.
    """
    if stall_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2.0 * mtbf_s)
    return (
        math.sqrt(2.0 * stall_s * mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - stall_s
    )


def at_most(steps: int) -> int:
    """Return the longest interval of a run of that many steps: a tenth of it, so that there is
    something to go back to, within 10 and 1000, and at least one per run.
    """
    return min(steps, max(LEAST_STEPS, min(USUAL[1], steps // SHARE_OF_RUN)))


def mean_time_between_failures(
    lives: Iterable[tuple[float, int, bool]], *, num_nodes: int
) -> float:
    """Return after how many seconds a run on that many nodes is to be expected to fail.

    The posterior mean of a Gamma prior worth one failure in `PRIOR_NODE_S`: a fleet of which
    little has been seen is judged by the prior, an old one by its own past.

    Args:
        lives: (seconds, nodes, whether it ended by a failure) of each attempt observed.
    """
    failures, node_s = 1.0, PRIOR_NODE_S
    for seconds, nodes, failed in lives:
        node_s += seconds * nodes
        failures += failed
    return node_s / failures / max(1, num_nodes)


def choose(pace: Pace, *, mtbf_s: float, steps: int) -> Interval:
    """Return the interval of a run of `steps` steps that goes at `pace`."""
    step_s = max(pace.step_time_s, 1e-6)
    ideal_s = daly_s(max(pace.stall_s, 1e-6), mtbf_s)
    ideal, longest = max(1, round(ideal_s / step_s)), at_most(steps)
    shortest = max(1, math.ceil(pace.write_s / step_s))
    every = min(max(ideal, shortest), max(longest, shortest), steps)
    told = (
        f"A checkpoint every {every} steps: it holds training up for {_seconds(pace.stall_s)}, a "
        f"step takes {_seconds(pace.step_time_s)} and a failure is to be expected every "
        f"{_seconds(mtbf_s)}, so {_seconds(ideal_s)} ({ideal} steps) of work between two waste the "
        "least (Daly 2006)"
    )
    if every == ideal:
        return Interval(every, f"{told}.")
    if every == shortest:
        return Interval(
            every, f"{told}; but writing one takes {_seconds(pace.write_s)}, {shortest} steps."
        )
    return Interval(every, f"{told}; but no more than {longest} of {steps} steps are put at risk.")


def _seconds(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
