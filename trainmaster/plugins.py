"""Doors for third parties: what a workload offers, and how it is found by its import path; pipeline
schedules, conditions of rules and choices of actions by entry point.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from trainmaster import actions, conditions, schedules
from trainmaster.actions import Chooser
from trainmaster.conditions import CustomCondition
from trainmaster.errors import ConflictError, Problem, SpecError, UserError
from trainmaster.notification import ChannelKind
from trainmaster.schedules import Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.tensor.parallel import ParallelStyle

SCHEDULE_GROUP = "trainmaster.schedules"
CONDITION_GROUP = "trainmaster.conditions"
ACTION_GROUP = "trainmaster.actions"
CHANNEL_GROUP = "trainmaster.channels"

Part = TypeVar("Part")


class Dataset(Protocol):
    """Samples by index. `dataset[i]` is (input, target) without a batch axis; the same index
    always gives the same sample.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...


@runtime_checkable
class Workload(Protocol):
    """What a user brings. Built on each rank from the spec's `params` and `data`.

    A rank builds only the layers of its stage. Initial weights must depend on (seed, layer index)
    alone, which the runtime sees to by seeding torch before each builder is called.
    """

    def layers(self) -> Sequence[Callable[[], nn.Module]]:
        """Return one builder per layer. Each module maps activations to activations; the first
        takes the input batch.
        """
        ...

    def loss(
        self, output: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Return (sum, weight) over a micro-batch: the mean loss is the sum over all sums divided
        by the sum of all weights.
        """
        ...

    def dataset(self) -> Dataset:
        """Return the samples."""
        ...


@runtime_checkable
class WithOptimizer(Protocol):
    """A workload that brings its own optimizer instead of the spec's."""

    def optimizer(self, params: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Return an optimizer over named parameters."""
        ...


@runtime_checkable
class WithTensorParallel(Protocol):
    """A workload whose layers can be spread over several ranks each.

    Attributes:
        tensor_units: what the number of ranks must divide, such as heads of attention.
    """

    tensor_units: int

    def tensor_parallel(self, layer: int, /) -> Mapping[str, ParallelStyle]:
        """Return a style for each submodule of `layer` whose parameters are to be divided, by its
        name within the layer. What the layer is given and gives stays whole on each rank.
        """
        ...


@dataclass(frozen=True, slots=True)
class HuggingFaceForm:
    """How a workload's weights are written for Hugging Face's libraries.

    Attributes:
        config: the content of `config.json`.
        names: the name of each parameter there, by its name here.
    """

    config: Mapping[str, Any]
    names: Mapping[str, str]


@runtime_checkable
class WithHuggingFace(Protocol):
    """A workload whose model Hugging Face's libraries know."""

    def hugging_face(self) -> HuggingFaceForm:
        """Return how its weights are written for them."""
        ...


def load_workload(path: str, *, params: dict[str, Any], data: str) -> Workload:
    """Import `module:attribute`, call it with `params` and `data` as keywords, and return what it
    builds.

    Raises:
        SpecError: it cannot be imported, cannot be built with these params, or lacks part of the
            protocol.
    """
    module_name, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise SpecError([Problem("workload", f"{path!r} cannot be imported: {error}")]) from error
    try:
        built = factory(params=params, data=data)
    except SpecError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise SpecError(
            [Problem("params", f"{path} cannot be built with these params: {error}")]
        ) from error
    if not isinstance(built, Workload):
        lacking = [
            name
            for name in ("layers", "loss", "dataset")
            if not callable(getattr(built, name, None))
        ]
        raise SpecError(
            [
                Problem(
                    "workload",
                    f"{path} lacks {', '.join(lacking)} (see trainmaster.plugins.Workload)",
                )
            ]
        )
    return built


def add_schedules(installed: Iterable[EntryPoint] | None = None) -> None:
    """Make the pipeline schedules known that are installed under the entry point group
    `trainmaster.schedules`: each a `trainmaster.schedules.Schedule`. Once, as a process starts.

    Raises:
        UserError: one cannot be loaded, or is no schedule.
        ConflictError: its name is taken.
    """
    if installed is None:
        installed = entry_points(group=SCHEDULE_GROUP)
    for entry in installed:
        schedules.add(_loaded(entry, Schedule, "pipeline schedule"))


def add_rule_parts(
    found_conditions: Iterable[EntryPoint] | None = None,
    choosers: Iterable[EntryPoint] | None = None,
) -> None:
    """Make known what rules may name of third parties: conditions under the entry point group
    `trainmaster.conditions`, each a `CustomCondition`, and choices of actions under
    `trainmaster.actions`, each a `Chooser`. Once, as a process starts.

    Raises:
        UserError: one cannot be loaded, or is none of these.
        ConflictError: its name is taken.
    """
    if found_conditions is None:
        found_conditions = entry_points(group=CONDITION_GROUP)
    if choosers is None:
        choosers = entry_points(group=ACTION_GROUP)
    for entry in found_conditions:
        conditions.add(_loaded(entry, CustomCondition, "condition"))
    for entry in choosers:
        actions.add(_loaded(entry, Chooser, "chooser of actions"))


def channel_kinds(installed: Iterable[EntryPoint] | None = None) -> dict[str, ChannelKind]:
    """Return the kinds of notification channels that are installed under the entry point group
    `trainmaster.channels`, by name.

    Raises:
        UserError: one cannot be loaded, or is none.
        ConflictError: two have one name.
    """
    if installed is None:
        installed = entry_points(group=CHANNEL_GROUP)
    kinds: dict[str, ChannelKind] = {}
    for entry in installed:
        kind = _loaded(entry, ChannelKind, "kind of channel")
        if kinds.setdefault(kind.name, kind) is not kind:
            raise ConflictError(f"there are two kinds of channel named {kind.name!r}")
    return kinds


def _loaded(entry: EntryPoint, kind: type[Part], what: str) -> Part:
    try:
        found = entry.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UserError(
            f"the {what} {entry.name} ({entry.value}) cannot be loaded: {error}",
            code="bad_plugin",
        ) from error
    if not isinstance(found, kind):
        raise UserError(
            f"the {what} {entry.name} ({entry.value}) is a {type(found).__name__}, not a "
            f"{kind.__module__}.{kind.__name__}",
            code="bad_plugin",
        )
    return found
