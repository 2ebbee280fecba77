"""Where a step's seconds go: counted always, and in a step that is recorded every action with its
start and end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from trainmaster.pulse import Activity
from trainmaster.timeline import MAX_ACTIONS, NONE, Action
from worker.emulation import Departure, Pace, Work
from worker.reporting.pulsefile import PulseFile

BLOCKED_S: Final = 2e-4
"""A wait that took longer really waited; a shorter one found what it waited for."""


class Meter:
    """Counts seconds of the current step, by what they were spent on.

    All instants are of the performance counter.

    Attributes:
        actions: those of the current step, if it is recorded; else None.
        dropped: how many more there were.
        origin: when the step began.
        first_number: the number of the current pass's first micro-batch within its step.
    """

    def __init__(self, pace: Pace, pulse: PulseFile) -> None:
        self.pace = pace
        self.pulse = pulse
        self.compute_s = 0.0
        self.p2p_wait_s = 0.0
        self.actions: list[Action] | None = None
        self.dropped = 0
        self.origin = 0.0
        self.first_number = 0
        self._next_number = 0
        self._handled_s = 0.0
        self._between: list[tuple[str, float, float]] = []

    def begin(self, step: int, origin: float, *, records: bool) -> None:
        """Begin a new step."""
        self.compute_s = self.p2p_wait_s = 0.0
        self.first_number = self._next_number = 0
        self.origin, self.dropped = origin, 0
        self.actions = [] if records else None
        self.pace.begin_step(step)
        for kind, started, ended in self._between:
            self.note(kind, started, ended)
        self._between.clear()

    def begin_pass(self, micro_batches: int) -> None:
        """Begin a pass of so many micro-batches."""
        self.first_number = self._next_number
        self._next_number += micro_batches
        self.pace.set_out()

    def computing(self, work: Work, stage: int, micro_batch: int, num_layers: int) -> Computing:
        """Count the body as compute of so many layers, stretched to the emulated device's pace."""
        return Computing(self, work, stage, micro_batch, num_layers)

    def waited(self, started: float, ended: float) -> None:
        """Count a wait for another stage."""
        if ended - started > BLOCKED_S:
            self.p2p_wait_s += ended - started
            self.pace.woke(ended)
            self._handled_s = 0.0
        else:
            self.posted(started, ended)

    def posted(self, started: float, ended: float) -> None:
        """Count that the host handled a message."""
        self.p2p_wait_s += ended - started
        self._handled_s += ended - started

    def computed(self, began: float, started: float, ended: float) -> None:
        """Count compute. On an emulated device it may have begun before it really `started`: then
        the messages that the host handled in between cost nothing.
        """
        self.compute_s += ended - began
        self.p2p_wait_s -= min(self._handled_s, started - began)
        self._handled_s = 0.0

    def note(
        self,
        kind: str,
        started: float,
        ended: float,
        stage: int = NONE,
        number: int = NONE,
        num_bytes: int = 0,
    ) -> None:
        """Record an action, where the step is recorded."""
        if self.actions is None:
            return
        if len(self.actions) >= MAX_ACTIONS:
            self.dropped += 1
            return
        since = self.origin
        start_ns, end_ns = round((started - since) * 1e9), round((ended - since) * 1e9)
        self.actions.append(Action(kind, stage, number, start_ns, end_ns, num_bytes))

    def note_before(self, kind: str, started: float, ended: float) -> None:
        """Record an action that lies between two steps with the step that begins next."""
        self._between.append((kind, started, ended))


class Computing:
    """The body of a `with` that computes. Written out: a generator costs twice as much.

    Attributes:
        leaving: what the emulated device sends off while it computes.
    """

    __slots__ = ("_layers", "_meter", "_micro_batch", "_stage", "_started", "_work", "leaving")

    def __init__(
        self, meter: Meter, work: Work, stage: int, micro_batch: int, num_layers: int
    ) -> None:
        self._meter = meter
        self._work: Work = work
        self._stage = stage
        self._micro_batch = micro_batch
        self._layers = num_layers
        self.leaving: Sequence[Departure] = ()

    def __enter__(self) -> Computing:
        self._started = time.perf_counter()
        self._meter.pulse.turn_to(Activity.COMPUTE)  # what follows is little, until another begins
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        meter = self._meter
        began, ended = meter.pace.rest(self._work, self._layers, self._started, self.leaving)
        meter.computed(began, self._started, ended)
        if meter.actions is not None:
            number = meter.first_number + self._micro_batch
            meter.note(self._work, began, ended, self._stage, number)
