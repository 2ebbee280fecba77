"""Actions: what a rule may do to a run. A closed set, so that what a rule can do is known before it
is trusted; third parties choose among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainmaster.errors import ConflictError
from trainmaster.plan import Positive, Strict


class Skip(Strict):
    """Leave it to the ranks, which apply no update that is not finite, and watch."""

    action: Literal["skip"]


class Rollback(Strict):
    """Go back to the newest trusted checkpoint before the first bad step, and change something.

    What changes: the batches of the bad steps are skipped (`skip`), the learning rate is
    multiplied by `lr_factor` for `lr_factor_steps` steps, or both. `earlier`: so many trusted
    checkpoints further back.
    """

    action: Literal["rollback"]
    skip: bool = True
    lr_factor: Annotated[float, Field(gt=0, lt=1)] | None = None
    lr_factor_steps: Positive = 100
    earlier: Annotated[int, Field(ge=0, le=100)] = 0

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.skip and self.lr_factor is None:
            raise ValueError(
                "must change something: the same state, data and draws give the same trouble again"
            )
        return self


class TakeCheckpoint(Strict):
    """Take a checkpoint now."""

    action: Literal["checkpoint"]


class Hold(Strict):
    """Keep the ranks waiting at a step boundary until a person decides."""

    action: Literal["hold"]


class Stop(Strict):
    """Checkpoint and stop."""

    action: Literal["stop"]


class Restart(Strict):
    """End all ranks and go on from the newest good checkpoint."""

    action: Literal["restart"]


class Degrade(Strict):
    """Go on with a single node, and come back after `return_after_steps` clean steps in a row."""

    action: Literal["degrade"]
    return_after_steps: Positive = 200


class Rebalance(Strict):
    """Give slow replicas a smaller share of each batch, by their measured speed; a run that was
    left to the planner is planned anew. `planned_only`: leave runs alone whose plan a spec gives.
    """

    action: Literal["rebalance"]
    planned_only: bool = False


class Cordon(Strict):
    """Give nothing new to the node that the alert names."""

    action: Literal["cordon"]


class DumpStacks(Strict):
    """Keep with the incident where each rank's threads stand."""

    action: Literal["dump_stacks"]


class Notify(Strict):
    """Tell people, by these channels or by all that are set up."""

    action: Literal["notify"]
    channels: Annotated[list[str], Field(max_length=20)] = []


PlainAction = (
    Skip
    | Rollback
    | TakeCheckpoint
    | Hold
    | Stop
    | Restart
    | Degrade
    | Rebalance
    | Cordon
    | DumpStacks
    | Notify
)


class Choose(Strict):
    """Let a third party choose one of the others, by its name under the entry point group
    `trainmaster.actions`.
    """

    action: Literal["choose"]
    by: str
    params: dict[str, Any] = {}

    @field_validator("by")
    @classmethod
    def _is_installed(cls, by: str) -> str:
        if by not in CHOOSERS:
            known = ", ".join(sorted(CHOOSERS)) or "none is installed here"
            raise ValueError(f"{by!r} is no installed chooser of actions ({known})")
        return by


Action = Annotated[PlainAction | Choose, Field(discriminator="action")]

DESTRUCTIVE_ACTIONS: frozenset[str] = frozenset(
    {"rollback", "restart", "stop", "degrade", "cordon"}
)

HARMLESS_ACTIONS: frozenset[str] = frozenset({"skip", "checkpoint", "dump_stacks", "notify"})
"""They leave the run as it goes."""

PLACING_ACTIONS: frozenset[str] = frozenset({"degrade", "rebalance", "cordon"})
"""They change where and how a run trains; where they are spent it goes on as it is."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a third party chooses by.

    Attributes:
        rule, metric, scope: of what fires.
        value: the newest bad value; None where it was not measured.
        taken: names of the actions taken in this incident so far.
    """

    rule: str
    metric: str
    scope: str
    value: float | None
    first_bad_step: int
    last_bad_step: int
    taken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chooser:
    """A third party's choice of actions.

    Attributes:
        name: as rules name it.
        choose: (situation, params) -> the action to take, None for none. Pure: the same situation
            always gives the same action.
    """

    name: str
    choose: Callable[[Situation, Mapping[str, Any]], PlainAction | None]


CHOOSERS: dict[str, Chooser] = {}
"""Those that were added as this process started."""


def add(chooser: Chooser) -> None:
    """Make a third party's choice of actions known.

    Raises:
        ConflictError: its name is taken.
    """
    if CHOOSERS.setdefault(chooser.name, chooser) is not chooser:
        raise ConflictError(f"there are two choosers of actions named {chooser.name!r}")


def chosen(action: PlainAction | Choose, situation: Situation) -> PlainAction | None:
    """Return the action itself, or what a third party chooses.

    Raises:
        TypeError: what it chose is none of the closed set.
    """
    if not isinstance(action, Choose):
        return action
    found = CHOOSERS[action.by].choose(situation, action.params)
    if found is not None and not isinstance(found, PlainAction):
        raise TypeError(f"{action.by!r} chose {found!r}, which is none of the actions")
    return found
