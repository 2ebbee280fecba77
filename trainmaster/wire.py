"""The one exchange between a node and the control plane: `sync`.

The agent says: I am alive, this runs here, this is what I saw. The control plane answers: I have
stored up to n of each stream, this is what should be running, come back in t. Non-finite numbers
travel as the strings "NaN", "Infinity" and "-Infinity".

Facts are sent at least once and stored once: each batch names the byte range of its spool stream,
is stored with the new cursor in one transaction, and only if it begins where the stored cursor
stands; the answer names the cursor, and the agent continues from there, be it forwards or
backwards.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    model_validator,
)

from trainmaster.orders import Drill, Order
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec

PROTOCOL_VERSION = 3
"""1: samples as lists of numbers. 2: samples may be packed (`PackedColumns`). 3: chores may be of
any kind, and an agent says of those that it does not know that another should do them; there are
timelines, and orders to record them.

An agent begins with 1 and goes on with what the answers say; so each side may be one release ahead
of the other.
"""
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


class Message(BaseModel):
    """Frozen; unknown keys are ignored so that a newer peer is understood."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


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


class Pulse(Message):
    """Where a rank is (`trainmaster.pulse`), in words.

    Attributes:
        still_s: seconds since it last came into this section or this step.
        idle_s: seconds since it last began something, be it a wait.
        frozen: the kernel lets it do nothing: stopped by a signal or a debugger.
    """

    section: Word
    activity: Word
    step: Whole
    still_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    idle_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    frozen: bool = False


class Reach(Message):
    """What a node sees of a neighbour on its own, past the control plane.

    Attributes:
        answers: the neighbour's agent took a connection just now.
        refused: its machine answered that no agent listens there any more.
        failures: attempts in a row that were not answered.
        ever: it has answered before.
        stored: in the checkpoint store the neighbour says again and again that it lives.
    """

    answers: bool
    refused: bool = False
    failures: Whole = 0
    ever: bool = False
    stored: bool = False


class StackCall(Message):
    """The stacks of ranks of this generation are wanted; each id is answered once, by the event
    `stacks_dumped` of each rank.
    """

    id: int
    ranks: list[int] | None = None


class Running(Message):
    """A generation that runs on this node: a level, told anew at each sync.

    Attributes:
        store: host:port of the TCPStore, when this node hosts it.
        ranks: rank -> pid of those alive.
        pulses: rank -> where it is and for how long, of those that have stood still for a while.
    """

    run: Name
    generation: Whole
    store: str | None = None
    ranks: dict[int, Whole] = {}
    pulses: dict[int, Pulse] = {}


class Device(Message):
    """A device of a node."""

    kind: str
    name: str
    memory_bytes: Whole


class Sync(Message):
    """What a node says.

    Attributes:
        protocol: what this message is written in; the newest that the last answer named.
        boot: random per agent process; a new one tells that the agent, and with it every rank,
            started anew.
        sent_at: the node's clock, only to show skew; nothing is decided by it.
        address: host under which other nodes reach this one.
        metrics_port: where Prometheus finds the agent's /metrics; null when it has none.
        reaches: neighbour -> what this node sees of it, of those that do not answer or did not
            lately.
    """

    protocol: int = 1
    boot: Annotated[str, Field(max_length=64)]
    version: Annotated[str, Field(max_length=40)]
    sent_at: Instant
    address: Annotated[str, Field(max_length=255)]
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    slots: Annotated[int, Field(ge=0, le=1024)]
    devices: list[Device] = []
    labels: dict[str, str] = {}
    profile: dict[str, Any] = {}
    running: list[Running] = []
    reaches: dict[Name, Reach] = {}
    batches: list[Batch] = []


class RankAssignment(Message):
    """One rank of an assignment and the slot of the node that it takes."""

    rank: int
    slot: int


class Resume(Message):
    """The checkpoint from which a generation begins."""

    checkpoint: str
    step: int
    location: str
    manifest_sha256: str
    copies: list[str] = []
    """Locations to turn to, in this order, when that one cannot be used."""


class Assignment(Message):
    """What one generation of one run should look like on one node.

    Attributes:
        hosts_store: this node is to host the generation's TCPStore and report its address in
            `Running.store`.
        store: its address once known; ranks start when it is.
        spec: the run's spec as resolved; `plan` says which rank does what.
        skip: inclusive batch ranges that nobody consumes, inherited from the parents and this
            attempt's own.
        lr_windows: [first_step, last_step, factor] by which the learning rate is multiplied.
        checkpoint_every: steps between checkpoints, resolved.
        mtbf_s: seconds after which a failure is to be expected; the interval is adapted to it and
            to what is measured. Null where the interval stays as it is.
        checkpoint_root: URL of the run's checkpoint folder.
        orders: all orders of this generation that no rank has yet acknowledged as applied or
            refused.
        stacks: whose stacks are wanted.
        neighbours: the other nodes of the generation -> host:port at which their agents listen.
    """

    run: str
    generation: int
    world_size: int
    hosts_store: bool
    store: str | None
    ranks: list[RankAssignment]
    spec: RunSpec
    plan: Plan
    resume: Resume | None
    skip: list[tuple[int, int]] = []
    lr_windows: list[tuple[int, int, float]] = []
    checkpoint_every: int
    mtbf_s: float | None = None
    checkpoint_root: str
    orders: list[Order] = []
    drills: list[Drill] = []
    stacks: list[StackCall] = []
    neighbours: dict[str, str] = {}

    @field_serializer("spec", "plan")
    def _without_defaults(self, told: RunSpec | Plan) -> dict[str, Any]:
        """What is as it is by default is not said: an agent of the release before refuses keys that
        it does not know, and a spec that uses none of them is for it, too.
        """
        return told.model_dump(mode="json", exclude_defaults=True)


BASIC_CHORES = frozenset({"describe", "verify", "retire"})
CHORES_PROTOCOL = 3
"""From which on an agent takes chores that are not among `BASIC_CHORES`."""


class Chore(Message):
    """A piece of work for an agent that is not training. Its result comes back as the event
    `chore_done`. `BASIC_CHORES` are what every agent knows; the others are given to those alone
    that speak protocol 3.

    kinds: "describe" {workload, params, data}; "verify" {location manifest_sha256}; "retire"
    {location}; "calibrate" {peers}.
    """

    id: int
    kind: str
    args: dict[str, Any] = {}


class SyncReply(Message):
    """What the control plane answers.

    Attributes:
        protocol: the newest that the control plane understands.
        cursors: for each stream named in the request: the offset up to which facts are stored.
        assignments: all that should run on this node; what is not in it must not run.
        next_sync_s: when to come back at the latest; an agent with news comes at once.
    """

    protocol: int = 1
    cursors: dict[str, int] = {}
    assignments: list[Assignment] = []
    chores: list[Chore] = []
    next_sync_s: float = 1.0


class WorkloadInfo(Message):
    """What `describe` found out about a workload: one entry per layer, sizes in parameters and
    bytes.

    Attributes:
        tensor_units: what the ranks of a place must divide; None where its tensors cannot be
            spread.
        brings_optimizer: whether it has its own instead of the spec's.
    """

    num_layers: int
    layers: list[dict[str, Any]] = []
    num_parameters: int
    num_samples: int
    weight_unit: Literal["tokens", "samples"] = "samples"
    code_sha256: str
    data_sha256: str | None = None
    tensor_units: int | None = None
    brings_optimizer: bool = False
