"""The one exchange between a node and the control plane: `sync`.

The agent says: I am alive, this runs here, this is what I saw. The control plane answers: I have
stored up to n of each stream, this is what should be running, come back in t.

Facts are sent at least once and stored once: each batch names the byte range of its spool stream,
is stored with the new cursor in one transaction, and only if it begins where the stored cursor
stands; the answer names the cursor, and the agent continues from there, be it forwards or
backwards.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    field_serializer,
)

from trainmaster.facts import Batch, Instant, Message, Name, Whole, Word
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

MOST_SKEW_S = 2.0
"""People are told of a clock that is off by more."""


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
    {location}; "calibrate" {peers}; "compare" {location manifest_sha256 other_location
    other_manifest_sha256}.
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


MADE_OF = ("code_sha256", "data_sha256", "environment_sha256", "environment")
"""What of a workload's description tells two runs of the same name apart."""


class WorkloadInfo(Message):
    """What `describe` found out about a workload: one entry per layer, sizes in parameters and
    bytes.

    Attributes:
        tensor_units: what the ranks of a place must divide; None where its tensors cannot be
            spread.
        brings_optimizer: whether it has its own instead of the spec's.
        environment_sha256: of interpreter and packages where it was described; None from an agent
            that does not tell.
        environment: what a person wants to know of these, by name.
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
    environment_sha256: str | None = None
    environment: dict[str, str] = {}
