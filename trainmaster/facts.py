"""Facts as they travel: what happened, and what ranks measured, batch by batch of a spool.

Non-finite numbers travel as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticSerializationError

_EPOCH, _BEYOND = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

Step = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Whole = Annotated[int, Field(ge=0, lt=2**62)]
"""What a database takes for an integer."""

Instant = Annotated[AwareDatetime, Field(ge=_EPOCH, lt=_BEYOND)]
"""One that any zone and any database can write down."""

Moment = Annotated[float, Field(ge=0, lt=_BEYOND.timestamp(), strict=True)]
"""An instant in seconds since the epoch; finite."""

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _all_finite(column: list[object]) -> bool:
    """Return whether there is nothing but finite numbers and None; what most columns are."""
    if not set(map(type, column)) <= {float, int, type(None)}:
        return False
    try:
        return all(map(math.isfinite, filter(None, column)))  # type: ignore[arg-type]
    except OverflowError:
        return False


def _numbers(told: object, info: ValidationInfo) -> object:
    """Return a column with words as the numbers they stand for.

    Nothing else is taken for a number: no other text, no true, and in JSON neither the bare words,
    which are not JSON, nor a number beyond what a float holds.
    """
    if not isinstance(told, list) or _all_finite(told):
        return told
    column = [_NON_FINITE.get(each, each) if isinstance(each, str) else each for each in told]
    for position, each in enumerate(column):
        if each is None or (type(each) is float and (each == each and abs(each) != math.inf)):
            continue
        is_word = isinstance(told[position], str) and type(each) is float
        is_whole = type(each) is int and abs(each) < _BEYOND_FLOAT
        if not (is_word or is_whole or (type(each) is float and info.mode != "json")):
            raise ValueError(
                f"value {position} must be a number that a 64-bit float holds, null, "
                f'"NaN", "Infinity" or "-Infinity"'
            )
    return column


_BEYOND_FLOAT = 2**1023

Numbers = Annotated[list[float | None], BeforeValidator(_numbers)]
"""A column of samples; null stands for "not measured"."""

MetricName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Name = Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")]
"""Printable ASCII."""

Word = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]


def _written_out(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_written_out(key): _written_out(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_written_out(each) for each in value]
    return value


class Message(BaseModel):
    """Frozen; unknown keys are ignored so that a newer peer is understood."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    def encoded(self) -> bytes:
        r"""Return it as JSON. Halves of surrogate pairs, as which Python reads file names that are
        not UTF-8, and which UTF-8 cannot carry, are written out: `\udcff`.
        """
        try:
            return self.model_dump_json().encode()
        except PydanticSerializationError:
            told = {name: _written_out(value) for name, value in self}
            return self.model_copy(update=told).model_dump_json().encode()


class Event(Message):
    """Something that has happened, told by a rank or an agent. `kind` is past tense; `data` is
    documented in docs/events.md.
    """

    kind: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,60}$")]
    at: Instant
    data: dict[str, Any] = {}


class Columns(Message):
    """Samples of one stream as columns of equal length; null stands for "not measured".

    `at` is when the rank ended the step, in seconds since the epoch.
    """

    steps: list[Step]
    at: list[Moment]
    values: dict[MetricName, Numbers]

    @model_validator(mode="after")
    def _equal_lengths(self) -> Columns:
        lengths = {len(self.steps), len(self.at), *(len(column) for column in self.values.values())}
        if len(lengths) > 1:
            raise ValueError(f"columns have different lengths: {sorted(lengths)}")
        taken = {"step", "at"} & self.values.keys()
        if taken:
            raise ValueError(f"no metric can be named {taken.pop()}: each row has one already")
        return self


class PackedColumns(Message):
    """`Columns` as they are stored: each column is the base64 of its little-endian 64-bit numbers
    (steps as integers), and the NaN of `trainmaster.spool.MISSING` stands for "not measured".
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    steps: bytes
    at: bytes
    values: dict[MetricName, bytes]

    @model_validator(mode="after")
    def _equal_lengths(self) -> PackedColumns:
        sizes = {len(self.steps), len(self.at), *(len(column) for column in self.values.values())}
        if len(sizes) > 1 or sizes.pop() % 8:
            raise ValueError("columns must have one length, a multiple of 8 bytes")
        taken = {"step", "at"} & self.values.keys()
        if taken:
            raise ValueError(f"no metric can be named {taken.pop()}: each row has one already")
        return self


class PackedTimeline(Message):
    """The timeline of a step, as `trainmaster.timeline` encodes it, in base64."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    data: bytes


class Batch(Message):
    """The facts that lie between two byte offsets of a spool stream ("agent", or
    "RUN/GENERATION/RANK"). Samples are `samples` or `packed`, not both.
    """

    stream: Name
    from_offset: Whole
    to_offset: Whole
    events: list[Event] = []
    samples: Columns | None = None
    packed: PackedColumns | None = None
    timelines: list[PackedTimeline] = []

    @model_validator(mode="after")
    def _one_form(self) -> Batch:
        if self.samples is not None and self.packed is not None:
            raise ValueError("give either samples or packed")
        return self
