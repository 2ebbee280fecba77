"""Drills: faults on purpose. A sticky one goes into later generations as the batches for which it
fired first. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from control.decision import NewDrill
from control.snapshot import DrillStatus, RunSnapshot
from control.turn import Turn
from trainmaster.batches import batches_of_steps
from trainmaster.document import Document, problems_of
from trainmaster.errors import SpecError
from trainmaster.orders import NUMERIC_FAULTS, Drill

REACH_STEPS = 50
"""What happens so soon after a drill is put down to it."""

UNTOLD_STEPS = 3
"""A rank tells a step after the next one has begun: the newest known may lie before the drill."""


def read(drill_id: int, args: Mapping[str, Any]) -> Drill:
    """Return the drill that a request's arguments ask for.

    Raises:
        SpecError: what is wrong with them.
    """
    fields = {name: value for name, value in args.items() if value is not None}
    try:
        return Drill.model_validate({**fields, "id": drill_id})
    except ValidationError as error:
        raise SpecError(problems_of(error, Drill, Document(fields))) from error


def behind(drills: Iterable[DrillStatus], generation: int, step: int) -> Drill | None:
    """Return the drill that is behind what happened in `generation` at `step`: the newest one that
    had fired there within the last `REACH_STEPS`; None if there was none.
    """
    near = [
        (at, status.drill.id, status.drill)
        for status in drills
        for of, at, _ in status.fired
        if of == generation and -UNTOLD_STEPS <= step - at <= REACH_STEPS
    ]
    return max(near, key=lambda each: each[:2])[2] if near else None


def carry(turn: Turn, generation: int) -> None:
    """Give the sticky drills to `generation`."""
    newest: dict[int, DrillStatus] = {}
    for status in turn.snapshot.drills:
        held = newest.get(status.drill.id)
        if held is None or status.generation > held.generation:
            newest[status.drill.id] = status
    for status in newest.values():
        if status.drill.sticky:
            batches = poisoned_batches(turn.snapshot, status)
            drill = status.drill.model_copy(update={"batches": batches})
            turn.drills.append(NewDrill(drill, generation=generation))


def poisoned_batches(snapshot: RunSnapshot, status: DrillStatus) -> tuple[tuple[int, int], ...]:
    """Return the batches that a drill concerns: those of its steps in the generation for which it
    was first meant.

    Empty while nothing tells: it has not fired, and names no step.
    """
    drill = status.drill
    if drill.batches:
        return drill.batches
    if status.fired:
        generation, first_step, _ = min(status.fired)
    elif drill.at_step is not None:
        generation, first_step = status.generation, drill.at_step
    else:
        return ()
    num_steps = drill.steps if drill.fault in NUMERIC_FAULTS else 1
    skip = next((each.skip for each in snapshot.attempts if each.generation == generation), ())
    return batches_of_steps(first_step, first_step + num_steps - 1, skip)
