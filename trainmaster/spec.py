"""RunSpec: what a user writes. Frozen, closed, and all its problems reported at once.

How a document becomes a spec, with lines for its problems, is in `trainmaster.document`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from trainmaster.ids import name_problem
from trainmaster.plan import Natural, ParallelAsk, Positive, Strict
from trainmaster.storage import url_problem, without_secrets

Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]


class DataSpec(Strict):
    """Where samples come from: `text:stdlib`, `text:PATH`, `tokens:PATH`, or `workload` for the
    workload's own.
    """

    source: str = "workload"

    @field_validator("source")
    @classmethod
    def _known_source(cls, source: str) -> str:
        kind, _, where = source.partition(":")
        if source == "workload" or (kind in {"text", "tokens"} and where and "\0" not in source):
            return source
        raise ValueError(f"{source!r} is none of text:stdlib, text:PATH, tokens:PATH, workload")


NEED_WHOLE_PARAMETERS = frozenset({"adafactor"})
"""Optimizers that keep statistics over whole rows and columns, so a part of a parameter is not
enough.
"""


class OptimizerSpec(Strict):
    """The optimizer and its learning rate. `lr` is for `base_batch` samples per step and is scaled
    to what a step consumes.
    """

    name: Literal["adamw", "sgd", "adafactor"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 3e-4
    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    base_batch: Positive | None = None
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    warmup_steps: Natural = 0
    decay: Literal["cosine", "linear", "constant"] = "constant"
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    grad_clip: Annotated[float, Field(gt=0)] | None = None

    @field_validator("betas")
    @classmethod
    def _betas_below_one(cls, betas: list[float]) -> list[float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("each must be at least 0 and below 1")
        return betas


class LrWindow(Strict):
    """The learning rate times `factor`, from `first_step` to `last_step`, both included."""

    first_step: Positive
    last_step: Positive
    factor: Annotated[float, Field(gt=0, le=10)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last_step < self.first_step:
            raise ValueError(f"last_step {self.last_step} lies before first_step {self.first_step}")
        return self


GradientSums = Literal["float64", "float32"]
"""In which the gradients of micro-batches and replicas are added up on a CPU."""


class TrainSpec(Strict):
    """How long, on what batch, with which numbers."""

    steps: Positive
    global_batch: Annotated[int, Field(ge=1, le=1 << 24)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    determinism: Literal["run", "layout"] = "run"
    gradient_sums: GradientSums = "float64"
    batch_ramp_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    optimizer: OptimizerSpec = OptimizerSpec()
    skip: list[Range] = []
    lr_factor_windows: list[LrWindow] = []

    @field_validator("skip")
    @classmethod
    def _ranges_in_order(cls, skip: list[list[int]]) -> list[list[int]]:
        for first, last in skip:
            if last < first:
                raise ValueError(f"[{first}, {last}] ends before it begins")
        return skip

    @model_validator(mode="after")
    def _layout_sums_exactly(self) -> Self:
        if self.determinism == "layout" and self.gradient_sums != "float64":
            raise ValueError(
                f"determinism 'layout' needs gradient_sums float64, not {self.gradient_sums}"
            )
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        if self.optimizer.warmup_steps > self.steps:
            raise ValueError(
                f"optimizer.warmup_steps {self.optimizer.warmup_steps} exceeds steps {self.steps}"
            )
        return self


class PlacementSpec(Strict):
    """On how many nodes, and on which. Where `nodes` is None, a run with `parallel: auto` may be on
    all of them, and another on `min_nodes`.
    """

    nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    min_nodes: Positive = 1
    labels: dict[str, str] = {}

    @model_validator(mode="after")
    def _min_within(self) -> Self:
        if self.nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is more than nodes {self.nodes}")
        return self


def _bare_off(told: object) -> object:
    """YAML reads the bare word `off` as false."""
    return "off" if told is False else told


class CheckpointSpec(Strict):
    """How often, where to, and what is kept. The last one of a run is always taken.

    Attributes:
        when_busy: what is done when one comes due while another is still being written.
        memory: whether the newest state also stays in memory that outlives its ranks.
        memory_every_steps: how often a state is kept in memory alone, beside those that are
            written; 0 is never.
    """

    every_steps: Annotated[int, Field(ge=1, le=10**9)] | Literal["auto"] = "auto"
    when_busy: Literal["wait", "skip"] = "wait"
    memory: Annotated[Literal["auto", "off"], BeforeValidator(_bare_off)] = "auto"
    memory_every_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    store: str = "default"
    local: str | None = None
    keep_last: Positive = 3
    keep_every: Natural = 0
    keep_best: Natural = 1
    trust_after_steps: Positive = 20

    @field_validator("store")
    @classmethod
    def _known_store(cls, store: str) -> str:
        problem = None if store == "default" else url_problem(store)
        if problem is not None:
            raise ValueError(f"{without_secrets(store)!r} {problem}")
        return store

    @model_validator(mode="after")
    def _memory_is_on(self) -> Self:
        if self.memory_every_steps and self.memory == "off":
            raise ValueError(
                f"memory_every_steps {self.memory_every_steps} needs memory auto, which is off"
            )
        return self

    @field_validator("local")
    @classmethod
    def _local_folder(cls, local: str | None, info: ValidationInfo) -> str | None:
        if local is None:
            return None
        problem = url_problem(local)
        if problem is None and not local.startswith("file:///"):
            problem = "is not on this machine: write file:///absolute/folder"
        if problem is not None:
            raise ValueError(f"{without_secrets(local)!r} {problem}")
        store = str(info.data.get("store", "")).rstrip("/")
        here = local.rstrip("/")
        if f"{here}/".startswith(f"{store}/") or f"{store}/".startswith(f"{here}/"):
            raise ValueError(f"{local!r} and store {store!r} lie in each other: there is no copy")
        return local


class RecoverySpec(Strict):
    """Budgets of what may be done without a person, per 24 h; a restart followed by a new commit
    is refunded. `replan_after_s` is how long an attempt trains before the run may go over to a plan
    with nodes that joined; None: never.
    """

    max_restarts: Natural = 5
    max_rollbacks: Natural = 3
    no_progress_limit: Positive = 3
    unreachable_after_s: Annotated[float, Field(gt=0)] | None = None
    replan_after_s: Annotated[float, Field(gt=0)] | None = 600.0


class TelemetrySpec(Strict):
    """What is measured beyond what every step tells."""

    timeline_every: Annotated[int, Field(ge=0, le=10**9)] = 0


class RunSpec(Strict):
    """A run, as its user writes it."""

    name: str
    workload: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=300)]
    params: dict[str, Any] = {}
    data: DataSpec = DataSpec()
    train: TrainSpec
    parallel: Annotated[Literal["auto"] | ParallelAsk, Field(validate_default=True)] = "auto"
    placement: PlacementSpec = PlacementSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    rules: str | list[str] = "default"
    recovery: RecoverySpec = RecoverySpec()
    telemetry: TelemetrySpec = TelemetrySpec()
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0

    @property
    def reach(self) -> PlacementSpec:
        """`placement` as it is meant: a plan that is spelled out does not spread over more nodes
        than somebody asked for.
        """
        if self.parallel == "auto" or self.placement.nodes is not None:
            return self.placement
        return self.placement.model_copy(update={"nodes": self.placement.min_nodes})

    @field_validator("params")
    @classmethod
    def _finite(cls, params: dict[str, Any]) -> dict[str, Any]:
        """JSON would make null of the others without a word."""
        wrong = [name for name, value in params.items() if not _is_finite(value)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: must be finite; write text for anything else")
        return params

    @field_validator("parallel")
    @classmethod
    def _fits_training(
        cls, asked: Literal["auto"] | ParallelAsk, info: ValidationInfo
    ) -> Literal["auto"] | ParallelAsk:
        train = info.data.get("train")
        problem = parallel_problem(train, asked) if isinstance(train, TrainSpec) else None
        if problem is not None:
            raise ValueError(problem)
        return asked

    @field_validator("name")
    @classmethod
    def _fit_to_show(cls, name: str) -> str:
        problem = name_problem(name)
        if problem:
            raise ValueError(problem)
        return name


def parallel_problem(train: TrainSpec, asked: Literal["auto"] | ParallelAsk) -> str | None:
    """Return why a `parallel` section does not go with how a run trains, or None."""
    if train.batch_ramp_steps and (asked == "auto" or asked.sync_every == 1):
        return (
            "train.batch_ramp_steps lets the passes of a step grow from 1 to sync_every, which is "
            "1: give it a larger one"
        )
    name = train.optimizer.name
    if name in NEED_WHOLE_PARAMETERS and asked != "auto" and (asked.zero or asked.tensor > 1):
        return (
            f"train.optimizer.name {name} keeps statistics over whole rows and columns: it needs "
            f"zero 0 and tensor 1, not {asked.zero} and {asked.tensor}"
        )
    if train.determinism == "run":
        return None
    if asked == "auto" or asked.micro_batch is None:
        return (
            "train.determinism 'layout' needs a micro_batch of your own: a sum over other "
            "micro-batches has other bits, and 'auto' may choose anew"
        )
    if asked.tensor > 1:
        return (
            f"train.determinism 'layout' needs tensor 1, not {asked.tensor}: a matrix product that "
            "is cut in two has other bits"
        )
    if asked.zero:
        return (
            f"train.determinism 'layout' needs zero 0, not {asked.zero}: where a tensor is "
            "divided, the fused optimizer may round its last values otherwise"
        )
    return None


def other_bits(
    before: RunSpec, train: TrainSpec, asked: Literal["auto"] | ParallelAsk
) -> str | None:
    """Return why going on so would change the bits that a run was promised in any layout, or
    None.
    """
    was = before.parallel
    if "run" in (before.train.determinism, train.determinism) or was == "auto" or asked == "auto":
        return None
    if asked.micro_batch == was.micro_batch:
        return None
    return (
        f"parallel.micro_batch {asked.micro_batch} would change the bits that train.determinism "
        f"'layout' promises: the steps so far were made with micro-batches of {was.micro_batch}. "
        "Leave it at that, or amend determinism"
    )


def _is_finite(value: object) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(_is_finite(each) for each in value.values())
        case list():
            return all(_is_finite(each) for each in value)
        case _:
            return True
