"""From signs to firings, member by member: a fold over steps.

    inactive --bad--> pending --`for` holds--> firing --as long good--> resolved
    pending --good again--> inactive

- `for: {steps: n}`: n bad steps in a row; one that says nothing neither adds nor breaks.
- `for: {steps: n, within: w}`: n bad steps among the last w.
- `for: {seconds: t}`: bad without a good step for t seconds, by the ranks' own clocks: silence adds
  nothing.

While it fires, a value between the bound and `clear` is neither bad nor good enough. The first bad
step of a firing is that of the first value that counted towards it, not the step at which it fired.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from control.rules.frame import Floats, Ints
from control.rules.judgement import Firing
from control.rules.signs import BAD, BETWEEN, GOOD, SILENT, Codes
from trainmaster.rule import For

MAX_FIRINGS = 64
"""How many of the newest firings a live fold remembers; a back-test remembers all."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Bad steps that count now."""

    step: int
    at: float


class Fold:
    """The state after some steps.

    Attributes:
        last_step: the newest step that was taken; 0 before the first.
        last_at: when it ended, in seconds.
        last_value: the newest bad value.
    """

    def __init__(self, lasting: For, *, max_firings: int | None = MAX_FIRINGS) -> None:
        self._lasting = lasting
        self._max_firings = max_firings
        self._bad: list[Trouble] = []
        self._good: list[Trouble] = []
        self._good_steps = 0
        self.firings: list[Firing] = []
        self.is_firing = False
        self.was_resolved = False
        self.last_step = 0
        self.last_at = 0.0
        self.last_bad_place: int | None = None

    @property
    def first_bad_step(self) -> int | None:
        """Where the trouble began that is pending or firing."""
        if self.is_firing:
            return self.firings[-1].first_bad_step
        return self._bad[0].step if self._bad else None

    @property
    def last_bad_step(self) -> int | None:
        """The newest bad step of it."""
        return self._bad[-1].step if self._bad else None

    def add(self, steps: Ints, at: Floats, codes: Codes, since: Ints, counts: Ints) -> None:
        """Take the signs of one member at further steps."""
        self.last_bad_place = None
        bad = np.flatnonzero(codes >= BAD)
        place, count = 0, len(codes)
        while place < count:
            if not self._bad:
                # Nothing changes before the next bad step, and mostly there is none.
                following = np.searchsorted(bad, place)
                if following == len(bad):
                    break
                place = int(bad[following])
            self._one(
                int(steps[place]),
                float(at[place]),
                int(codes[place]),
                int(since[place]),
                int(counts[place]),
                place,
            )
            place += 1
        if count:
            self.last_step, self.last_at = int(steps[-1]), float(at[-1])

    def _one(self, step: int, at: float, code: int, since: int, count: int, place: int) -> None:
        if code >= BAD:
            self._bad += [Trouble(min(since, step), at)] * (count - 1)
            self._bad.append(Trouble(step if count > 1 or self._bad else min(since, step), at))
            self._good.clear()
            self._good_steps = 0
            self.last_bad_place = place
        elif code == GOOD or (code == BETWEEN and not self.is_firing):
            self._good.append(Trouble(step, at))
            self._good_steps += 1
            del self._good[1:-1]
        elif code == BETWEEN:
            self._good.clear()
            self._good_steps = 0
        self._forget(step, code)
        if not self.is_firing and self._bad and self._holds():
            self.is_firing = True
            self.firings.append(Firing(self._bad[0].step, step, fired_at=at))
            if self._max_firings is not None:
                del self.firings[: -self._max_firings]
        elif self.is_firing and self._is_over(step):
            self.is_firing = False
            self.was_resolved = True
            self.firings[-1] = replace(self.firings[-1], resolved_step=step, resolved_at=at)
            self._bad.clear()
        if self.is_firing:
            del self._bad[:-1]  # where it began stands in the firing
        elif self._lasting.seconds is not None:
            del self._bad[1:-1]

    def _forget(self, step: int, code: int) -> None:
        """Drop bad steps that no longer count."""
        if self.is_firing or (code >= BAD and self._lasting.within is None):
            return
        if self._lasting.within is not None:
            oldest = step - self._lasting.within + 1
            self._bad = [each for each in self._bad if each.step >= oldest]
        elif code != SILENT:
            self._bad.clear()

    def _holds(self) -> bool:
        if self._lasting.seconds is not None:
            return self._bad[-1].at - self._bad[0].at >= self._lasting.seconds
        assert self._lasting.steps is not None
        return len(self._bad) >= self._lasting.steps

    def _is_over(self, step: int) -> bool:
        if not self._good:
            return False
        if self._lasting.seconds is not None:
            return self._good[-1].at - self._good[0].at >= self._lasting.seconds
        if self._lasting.within is not None:
            return step - self._bad[-1].step >= self._lasting.within
        assert self._lasting.steps is not None
        return self._good_steps >= self._lasting.steps
