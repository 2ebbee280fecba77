"""Whether one value is bad. Finiteness is tested first: a comparison with NaN is always false and
would hide what matters most.

A value that was not measured is neither good nor bad, for silence is not evidence, with one
exception: where the loss stays away for several steps in a row, it is not finite (some trainers
print nothing instead of NaN).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from control.snapshot import Sample
from trainmaster.rule import Above, Below, Condition, Rule

MISSING_IS_BAD_AFTER = {"loss": 3}
"""Metric -> consecutive missing values that count as not finite."""


class Verdict(Enum):
    """What one sample says."""

    GOOD = "good"
    BAD = "bad"
    SILENT = "silent"


def is_bad(condition: Condition, value: float) -> bool:
    """Return whether a measured value is bad; one that is not finite always is."""
    if not math.isfinite(value):
        return True
    if isinstance(condition, Above):
        return value > condition.value
    if isinstance(condition, Below):
        return value < condition.value
    return False


def threshold(condition: Condition) -> float | None:
    """Return the number that a value is compared with, if there is one."""
    return condition.value if isinstance(condition, Above | Below) else None


def verdicts(rule: Rule, samples: Sequence[Sample]) -> list[Verdict]:
    """Return what each sample says under `rule`."""
    found = [
        Verdict.SILENT
        if sample.value is None
        else Verdict.BAD
        if is_bad(rule.when, sample.value)
        else Verdict.GOOD
        for sample in samples
    ]
    patience = MISSING_IS_BAD_AFTER.get(rule.metric)
    if patience is None or rule.when.condition != "non_finite":
        return found
    run_length = 0
    for position, sample in enumerate([*samples, None]):
        if sample is not None and sample.value is None:
            run_length += 1
            continue
        if run_length >= patience:
            found[position - run_length : position] = [Verdict.BAD] * run_length
        run_length = 0
    return found
