"""Conditions: the tests that a rule makes, step by step. A closed set, and one door to those of
third parties.

Every condition but `missing_for`, `frozen` and `age` finds a value that is not finite bad, and
none counts a value that was not measured for or against anything. Conditions that compare with the
past keep a baseline of good values only: what was bad, or not finite, never enters it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainmaster.errors import ConflictError
from trainmaster.plan import Strict

MAX_WINDOW = 512
"""Steps: as far back as a turn can look after the control plane was started anew."""

MAX_PARTS = 16
MAX_NESTED = 4

Window = Annotated[int, Field(ge=4, le=MAX_WINDOW)]
Steps = Annotated[int, Field(ge=1, le=MAX_WINDOW)]
Ratio = Annotated[float, Field(gt=0, le=1e9)]


class Part(Strict):
    """What every condition may say: that it is about another metric than its rule."""

    metric: str | None = None


def _one_bound(above: float | None, below: float | None) -> None:
    if (above is None) == (below is None):
        raise ValueError("give either above or below")


def _clear_is_inside(bound: float, clear: float | None, *, above: bool) -> None:
    if clear is not None and (clear > bound if above else clear < bound):
        raise ValueError(
            f"clear must not be {'greater' if above else 'less'} than the bound {bound:g}: "
            "a rule that fires is over at once otherwise"
        )


class Above(Part):
    """Bad while the value is greater than `value`; once firing, until it is at most `clear`."""

    condition: Literal["above"]
    value: float
    clear: float | None = None

    @model_validator(mode="after")
    def _hysteresis(self) -> Self:
        _clear_is_inside(self.value, self.clear, above=True)
        return self


class Below(Part):
    """Bad while the value is less than `value`; once firing, until it is at least `clear`."""

    condition: Literal["below"]
    value: float
    clear: float | None = None

    @model_validator(mode="after")
    def _hysteresis(self) -> Self:
        _clear_is_inside(self.value, self.clear, above=False)
        return self


class NonFinite(Part):
    """Bad while the value is NaN or infinite. A loss that stays away for three steps in a row is
    not finite either: some trainers print nothing instead of NaN.
    """

    condition: Literal["non_finite"]


class MissingFor(Part):
    """Bad from the first of `steps` steps in a row in which the value was not measured, while
    others were.
    """

    condition: Literal["missing_for"]
    steps: Steps = 3


class Frozen(Part):
    """Bad while the value is, to the bit, what it was the last `steps` times it was measured. One
    that repeated as often as it changed before is constant by nature, rather than frozen.
    """

    condition: Literal["frozen"]
    steps: Steps = 3


class RatioToMedian(Part):
    """Bad while the value is more than `above`, or less than `below`, times the median of the last
    `window` good ones. Silent before `min_samples` of them.
    """

    condition: Literal["ratio_to_median"]
    above: Ratio | None = None
    below: Ratio | None = None
    clear: Ratio | None = None
    window: Window = 128
    min_samples: Window = 32

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        _one_bound(self.above, self.below)
        if self.above is not None:
            _clear_is_inside(self.above, self.clear, above=True)
        elif self.below is not None:
            _clear_is_inside(self.below, self.clear, above=False)
        _samples_fit(self.min_samples, self.window)
        return self


class RobustZ(Part):
    """Bad while the value lies more than `above` sigmas above the median of the last `window` good
    ones, and at least `least_ratio` of that median. Sigma is 1.4826 times the median distance from
    the median, which outliers do not widen.
    """

    condition: Literal["robust_z"]
    above: Ratio
    least_ratio: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    clear: Ratio | None = None
    window: Window = 128
    min_samples: Window = 32

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        _clear_is_inside(self.above, self.clear, above=True)
        _samples_fit(self.min_samples, self.window)
        return self


class LevelChange(Part):
    """Bad while the median of the last `recent` values has risen above, or fallen below, the median
    of the `window` good ones before by the share `rise` or `fall` of it, and by `sigmas` standard
    errors of such a median, so that noise is no change.
    """

    condition: Literal["level_change"]
    rise: Ratio | None = None
    fall: Annotated[float, Field(gt=0, lt=1)] | None = None
    recent: Window = 16
    window: Window = 128
    min_samples: Window = 32
    sigmas: Annotated[float, Field(ge=0, le=100)] = 4.0

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if (self.rise is None) == (self.fall is None):
            raise ValueError("give either rise or fall")
        _samples_fit(self.min_samples, self.window)
        return self


class SpreadOverReplicas(Part):
    """Bad while the replicas' values of one step differ by more than `above` of their median."""

    condition: Literal["spread_over_replicas"]
    above: Annotated[float, Field(ge=0, le=1e9)]


class RelativeToBestPeer(Part):
    """Bad while the score of a member is less than `below`: the best peer's median of the last
    `window` values over its own (of times; its own over the best for what is better higher). Peers
    hold the same stage; without one it is silent. The two must lie `sigmas` standard errors of
    both medians apart, so that the noise of a busy machine is no slowness; less begins no alert,
    and ends none.
    """

    condition: Literal["relative_to_best_peer"]
    below: Annotated[float, Field(gt=0, le=1)] = 0.75
    better: Literal["lower", "higher"] = "lower"
    window: Window = 16
    sigmas: Annotated[float, Field(ge=0, le=100)] = 0.0


class RelativeToOwnPast(Part):
    """Bad while the score of a member is less than `below`: the best median that it has had before
    over its median of the last `window` values (of times; the other way for what is better higher);
    `sigmas` as with the best peer.
    """

    condition: Literal["relative_to_own_past"]
    below: Annotated[float, Field(gt=0, le=1)] = 0.75
    better: Literal["lower", "higher"] = "lower"
    window: Window = 16
    sigmas: Annotated[float, Field(ge=0, le=100)] = 0.0


class Age(Part):
    """Bad while the newest measured value is older than `above_s` seconds, by the ranks' clocks."""

    condition: Literal["age"]
    above_s: Annotated[float, Field(gt=0, le=365 * 86400)]


class FailedFraction(Part):
    """Bad while more than the share `above` of the last `window` values were 0, and at least
    `at_least` of them: of the metric `applied` those are steps attempted and not applied.
    """

    condition: Literal["failed_fraction"]
    above: Annotated[float, Field(ge=0, lt=1)] = 0.1
    window: Window = 50
    at_least: Steps = 3


class AllOf(Strict):
    """Bad while all parts are bad."""

    condition: Literal["all"]
    of: Annotated[list[Condition], Field(min_length=1, max_length=MAX_PARTS)]


class AnyOf(Strict):
    """Bad while any part is bad."""

    condition: Literal["any"]
    of: Annotated[list[Condition], Field(min_length=1, max_length=MAX_PARTS)]


class Custom(Part):
    """A third party's condition, by its name under the entry point group
    `trainmaster.conditions`.
    """

    condition: Literal["custom"]
    name: str
    params: dict[str, Any] = {}

    @field_validator("name")
    @classmethod
    def _is_installed(cls, name: str) -> str:
        if name not in CUSTOM:
            known = ", ".join(sorted(CUSTOM)) or "none is installed here"
            raise ValueError(f"{name!r} is no installed condition ({known})")
        return name


Condition = Annotated[
    Above
    | Below
    | NonFinite
    | MissingFor
    | Frozen
    | RatioToMedian
    | RobustZ
    | LevelChange
    | SpreadOverReplicas
    | RelativeToBestPeer
    | RelativeToOwnPast
    | Age
    | FailedFraction
    | AllOf
    | AnyOf
    | Custom,
    Field(discriminator="condition"),
]
Leaf = (
    Above
    | Below
    | NonFinite
    | MissingFor
    | Frozen
    | RatioToMedian
    | RobustZ
    | LevelChange
    | SpreadOverReplicas
    | RelativeToBestPeer
    | RelativeToOwnPast
    | Age
    | FailedFraction
    | Custom
)
AllOf.model_rebuild()
AnyOf.model_rebuild()


@dataclass(frozen=True, slots=True)
class CustomCondition:
    """A third party's condition.

    Attributes:
        name: as rules name it.
        window: how many values it is given at most, the newest last; None where one was not
            measured.
        is_bad: (values, params) -> whether the newest is bad; None to say nothing of it. Pure: the
            same values always give the same answer. It is never asked about a newest value that was
            not measured, or is not finite: that one is bad.
    """

    name: str
    window: int
    is_bad: Callable[[Sequence[float | None], dict[str, Any]], bool | None]

    def __post_init__(self) -> None:
        assert 1 <= self.window <= MAX_WINDOW, f"{self.name}: window must be 1 to {MAX_WINDOW}"


CUSTOM: dict[str, CustomCondition] = {}
"""Those that were added as this process started."""


def add(condition: CustomCondition) -> None:
    """Make a third party's condition known.

    Raises:
        ConflictError: its name is taken.
    """
    if CUSTOM.setdefault(condition.name, condition) is not condition:
        raise ConflictError(f"there are two conditions named {condition.name!r}")


def parts_of(condition: Condition) -> Iterator[Leaf]:
    """Yield the conditions that look at values: itself, or those that it is made of."""
    if isinstance(condition, AllOf | AnyOf):
        for each in condition.of:
            yield from parts_of(each)
    else:
        yield condition


def depth(condition: Condition) -> int:
    """Return how deeply conditions are nested; 1 for a plain one."""
    if isinstance(condition, AllOf | AnyOf):
        return 1 + max(depth(each) for each in condition.of)
    return 1


def _samples_fit(min_samples: int, window: int) -> None:
    if min_samples > window:
        raise ValueError(f"min_samples must not be more than the window of {window}")
