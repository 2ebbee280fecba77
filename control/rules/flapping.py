"""Whether a rule flaps: fires, heals and fires again, so often that it is shown as one alert. Pure.

It flaps once `FIRINGS` firings lie within a window, and until a clean stretch of the same length
has followed the last of them. The window is `FORS` times the rule's `for`, in its own measure: in
steps, at least `LEAST_STEPS`, or in seconds of the ranks' clocks. What the rule does is not touched
by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from control.rules.judgement import Firing
from trainmaster.rule import For

FIRINGS: Final = 3
FORS: Final = 10
LEAST_STEPS: Final = 100


def window(lasting: For) -> float:
    """Return the window of a rule: seconds where its `for` is in seconds, else steps."""
    if lasting.seconds is not None:
        return FORS * lasting.seconds
    assert lasting.steps is not None
    return max(LEAST_STEPS, FORS * (lasting.within or lasting.steps))


def flaps(firings: Sequence[Firing], lasting: For, *, last_step: int, last_at: float) -> bool:
    """Return whether a rule with these firings flaps now.

    Args:
        firings: ascending; only the newest may go on.
        last_step, last_at: the newest step that was judged, and when it ended, in seconds.
    """
    length, in_seconds = window(lasting), lasting.seconds is not None
    flapping, over = False, -float("inf")
    for place, firing in enumerate(firings):
        if _fired(firing, in_seconds=in_seconds) - over >= length:
            flapping = False
        if firing.resolved_step is None:
            return flapping
        over = firing.resolved_at if in_seconds else firing.resolved_step
        first = place - FIRINGS + 1
        if first >= 0 and over - _fired(firings[first], in_seconds=in_seconds) <= length:
            flapping = True
    return flapping and (last_at if in_seconds else last_step) - over < length


def _fired(firing: Firing, *, in_seconds: bool) -> float:
    return firing.fired_at if in_seconds else firing.fired_step
