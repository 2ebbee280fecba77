"""A run that comes with its checkpoints: rows made from what manifests and states tell.

The run is stopped and can be resumed. Each generation that took one of the checkpoints gets an
attempt that has ended, so that the lineage is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, insert, select

from control.checkpoints.judging import interval
from control.db import history, restored, tables
from control.db.fleet import chores
from trainmaster.checkpoint.adoption import Adoption, FoundCheckpoint, lineage_parent
from trainmaster.errors import ConflictError, UserError
from trainmaster.ids import checkpoint_id
from trainmaster.plan import Pipeline, Plan
from trainmaster.spec import RunSpec

CAUSE_KIND = "import"


def adopt(
    connection: Connection, asked: Adoption, spec: RunSpec, *, actor: str, now: datetime
) -> str:
    """Store the run and its checkpoints; return its id.

    Raises:
        ConflictError: there is a run of that id already.
        UserError: two checkpoints are one, or a generation began at two places.
    """
    r = tables.runs.c
    if connection.scalar(select(r.id).where(r.id == asked.run)) is not None:
        raise ConflictError(
            f"there is a run {asked.run} already; only one that this database does not know can "
            "be adopted",
            code="already_known",
        )
    generations = _by_generation(asked)
    newest = max(generations)
    trained = any(each.step > 0 for each in asked.checkpoints)
    args = chores.workload_args(spec.workload, spec.params, spec.data.source)
    because = f"Adopted from {asked.root} with {len(asked.checkpoints)} checkpoints, by {actor}."
    connection.execute(
        insert(tables.runs).values(
            id=asked.run,
            name=spec.name,
            state="stopped",
            state_since=now,
            desired="stopped",
            generation=newest,
            # Nodes may have seen generations of it that no checkpoint tells of.
            generation_floor=newest + restored.LEAP if trained else 0,
            version=1,
            priority=spec.priority,
            spec=spec.model_dump(mode="json"),
            workload_key=chores.digest(args),
            checkpoint_root=asked.root.rstrip("/"),
            created_at=now,
            created_by=actor,
            ended_at=now,
            because=because,
            next_look_at=now,
            touched=0,
        )
    )
    for generation in sorted(generations):
        row = _attempt(asked.run, generations[generation], spec, because=because, now=now)
        connection.execute(insert(tables.attempts).values(row))
    for each in asked.checkpoints:
        connection.execute(insert(tables.checkpoints).values(_checkpoint(asked.run, each, now)))
    data = {"root": asked.root, "checkpoints": len(asked.checkpoints)}
    history.record(
        connection,
        at=now,
        run=asked.run,
        kind="run_adopted",
        actor=actor,
        because=because,
        data=data,
    )
    history.audit(
        connection, at=now, actor=actor, action="run_adopted", target=asked.run, data=data
    )
    return asked.run


def _by_generation(asked: Adoption) -> dict[int, list[FoundCheckpoint]]:
    found: dict[int, list[FoundCheckpoint]] = {}
    for each in sorted(asked.checkpoints, key=lambda each: (each.generation, each.step)):
        beside = found.setdefault(each.generation, [])
        if beside and beside[-1].step == each.step:
            raise UserError(f"generation {each.generation} has two checkpoints at step {each.step}")
        if beside and beside[-1].parent != each.parent:
            raise UserError(
                f"generation {each.generation} began at {beside[-1].parent}, and at {each.parent}"
            )
        if not each.location.startswith(asked.root.rstrip("/") + "/"):
            raise UserError(f"{each.location} does not lie in {asked.root}")
        beside.append(each)
    return found


def _attempt(
    run: str, taken: Sequence[FoundCheckpoint], spec: RunSpec, *, because: str, now: datetime
) -> dict[str, Any]:
    newest = taken[-1]
    parent = lineage_parent(newest.parent, run)
    resumed_from_step = parent[1] if parent else 0
    went_on = newest.step > resumed_from_step
    return {
        "run": run,
        "generation": newest.generation,
        "parent_generation": parent[0] if parent else None,
        "state": "stopped",
        "cause": because,
        "cause_kind": CAUSE_KIND,
        "spec": spec.model_dump(mode="json"),
        "plan": _plan(newest.layout).model_dump(mode="json"),
        "checkpoint_every": interval(spec).every_steps,
        "started_at": now,
        "ended_at": now,
        "ended_because": because,
        "resumed_from_step": resumed_from_step,
        "resumed_from_checkpoint": newest.parent,
        "skip": newest.skip,
        "own_skip": [],
        "lr_windows": [
            [int(first), int(last), factor] for first, last, factor in newest.lr_windows
        ],
        "first_step": resumed_from_step + 1 if went_on else None,
        "last_step": newest.step if went_on else None,
    }


def _plan(layout: dict[str, Any]) -> Plan:
    """Return the plan of a generation, or one rank where its checkpoints tell none: the next
    attempt is planned anew.
    """
    try:
        return Plan.model_validate(layout)
    except ValidationError:
        return Plan(
            micro_batch=1, schedule="1f1b", pipelines=(Pipeline(layers=(1,), micro_batches=1),)
        )


def _checkpoint(run: str, each: FoundCheckpoint, now: datetime) -> dict[str, Any]:
    return {
        "id": checkpoint_id(run, each.generation, each.step),
        "run": run,
        "generation": each.generation,
        "step": each.step,
        "parent": each.parent,
        "state": "committed",
        "abandoned": False,
        "pinned": False,
        "bytes": each.bytes,
        "files": each.files,
        "location": each.location,
        "manifest_sha256": each.manifest_sha256,
        "created_at": now,
        "tries": 0,
        "because": "Adopted; its bytes were read then.",
    }
