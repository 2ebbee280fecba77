"""The state of a rule: a stateless fold over a window, so that it rewinds when the lineage does.
Pure; the back-test runs this code.

    inactive --bad value--> pending --`for` holds--> firing --as long good--> resolved
    pending --good again--> inactive

- `for: {steps: n}`: n bad values in a row; a missing one neither adds nor breaks.
- `for: {steps: n, within: w}`: n bad values among the last w steps.
- `for: {seconds: t}`: bad without a good value for t seconds, by the ranks' own clocks: silence
  adds nothing.

The first bad step of a firing is that of the first value that counted towards it, not the step at
which it fired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from control.rules.conditions import Verdict, threshold, verdicts
from control.snapshot import Sample
from trainmaster.rule import AlertState, For, Rule

SCOPE = "run"


@dataclass(frozen=True, slots=True)
class Firing:
    """One time a rule fired: the step of its first bad value, the step at which it fired, and at
    which it was over.
    """

    first_bad_step: int
    fired_step: int
    resolved_step: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule says of a window.

    Attributes:
        value: the newest bad value while pending or firing, else the newest value.
        first_bad_step, last_bad_step: of the trouble that is pending or firing; None otherwise.
        firings: all in the window, the present one included.
    """

    rule: Rule
    state: AlertState = "inactive"
    value: float | None = None
    threshold: float | None = None
    first_bad_step: int | None = None
    last_bad_step: int | None = None
    firings: tuple[Firing, ...] = ()


@dataclass
class _Fold:
    """The state of the fold after some samples: the bad ones that count now, and since when all has
    been good.
    """

    rule: Rule
    bad: list[Sample] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    is_firing: bool = False
    good: list[Sample] = field(default_factory=list)
    was_resolved: bool = False

    def add(self, sample: Sample, verdict: Verdict) -> None:
        if verdict is not Verdict.BAD and not self.bad:
            return  # nothing is pending or firing, so nothing can change
        if verdict is Verdict.BAD:
            self.bad.append(sample)
            self.good.clear()
        elif verdict is Verdict.GOOD:
            self.good.append(sample)
        self._forget(sample, verdict)
        if not self.is_firing and self.bad and _holds(self.rule.for_, self.bad):
            self.is_firing = True
            self.firings.append(Firing(self.bad[0].step, sample.step))
        elif self.is_firing and _is_over(self.rule.for_, sample, self.bad, self.good):
            self.is_firing = False
            self.was_resolved = True
            last = self.firings[-1]
            self.firings[-1] = Firing(last.first_bad_step, last.fired_step, sample.step)
            self.bad.clear()

    def _forget(self, sample: Sample, verdict: Verdict) -> None:
        """Drop bad values that no longer count; while firing all are kept: its extent."""
        if self.is_firing:
            return
        if self.rule.for_.within is not None:
            oldest = sample.step - self.rule.for_.within + 1
            self.bad = [each for each in self.bad if each.step >= oldest]
        elif verdict is Verdict.GOOD:
            self.bad.clear()


def _holds(lasting: For, bad: Sequence[Sample]) -> bool:
    if lasting.seconds is not None:
        return (bad[-1].at - bad[0].at).total_seconds() >= lasting.seconds
    assert lasting.steps is not None
    return len(bad) >= lasting.steps


def _is_over(lasting: For, sample: Sample, bad: Sequence[Sample], good: Sequence[Sample]) -> bool:
    if not good:
        return False
    if lasting.seconds is not None:
        return (good[-1].at - good[0].at).total_seconds() >= lasting.seconds
    if lasting.within is not None:
        return sample.step - bad[-1].step >= lasting.within
    assert lasting.steps is not None
    return len(good) >= lasting.steps


def evaluate(rule: Rule, samples: Sequence[Sample]) -> Judgement:
    """Return the state of `rule` after `samples`, which ascend by step on one lineage."""
    fold = _Fold(rule)
    found = verdicts(rule, samples)
    # Nothing changes before the first bad value, and mostly there is none.
    first_bad = found.index(Verdict.BAD) if Verdict.BAD in found else len(found)
    for sample, verdict in zip(samples[first_bad:], found[first_bad:], strict=True):
        fold.add(sample, verdict)
    bar = threshold(rule.when)
    if fold.bad:
        state: AlertState = "firing" if fold.is_firing else "pending"
        first = fold.firings[-1].first_bad_step if fold.is_firing else fold.bad[0].step
        last_bad = fold.bad[-1]
        return Judgement(
            rule, state, last_bad.value, bar, first, last_bad.step, tuple(fold.firings)
        )
    newest = next((each.value for each in reversed(samples) if each.value is not None), None)
    return Judgement(
        rule,
        "resolved" if fold.was_resolved else "inactive",
        newest,
        bar,
        firings=tuple(fold.firings),
    )


def judge_all(
    rules: Iterable[Rule], windows: Mapping[str, Sequence[Sample]]
) -> tuple[Judgement, ...]:
    """Return the judgement of each enabled rule that has something to look at; those without stay
    as they are.
    """
    return tuple(
        evaluate(rule, windows[rule.metric])
        for rule in rules
        if not_applicable(rule) is None and windows.get(rule.metric) is not None
    )


def not_applicable(rule: Rule) -> str | None:
    """Return why `rule` is not evaluated in this version, as a sentence; None if it is."""
    if not rule.enabled:
        return f"{rule.name} is disabled."
    if rule.scope != SCOPE:
        return f"{rule.name} has the scope {rule.scope}; this version judges run-level values only."
    return None
