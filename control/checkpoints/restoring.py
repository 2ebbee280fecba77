"""What a person's restore would do: which checkpoint, what is lost, what differs. One reading of
the request for all who need it: the turn that accepts it, the turn that launches it, and the
preview in the dialog and behind `--dry-run`. Pure.

Arguments of the request: {"checkpoint": id, "skip_steps": n, "lr_factor": f, "plan": mapping,
"forget_skips": bool}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from control.checkpoints.choice import GOOD
from control.lifecycle import refusal
from control.lineage import inherited_lr_windows, inherited_skip, is_on, newest_step, surviving
from control.snapshot import Checkpoint, LrWindow, Range, RunSnapshot
from trainmaster.batches import batches_of_steps, normalise
from trainmaster.document import Document, problems_of
from trainmaster.errors import SpecError, UserError
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve, workload_problems
from trainmaster.spec import other_bits, parallel_problem

MAX_SKIP_STEPS = 1_000_000
MAX_LR_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore that can be carried out. `differs` are sentences; empty when nothing will be
    different.
    """

    checkpoint: Checkpoint
    skip: tuple[Range, ...]
    own_skip: tuple[Range, ...]
    lr_windows: tuple[LrWindow, ...]
    lr_factor: float | None
    plan: Plan | None
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """What a restore would mean, asked now.

    Attributes:
        refused: why it cannot be done in the run's present state; None when it can.
        steps_lost: steps of the surviving lineage after the checkpoint; their work is left on an
            abandoned branch.
        differs: what will be different this time, as sentences.
        warnings: what a person should know of the checkpoint.
    """

    checkpoint: str
    checkpoint_state: str
    step: int
    current_step: int
    steps_lost: int
    seconds_lost: float
    differs: tuple[str, ...]
    warnings: tuple[str, ...]
    refused: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it as the API answers."""
        return {name: getattr(self, name) for name in self.__slots__}


def read(snapshot: RunSnapshot, args: Mapping[str, Any]) -> Restore:
    """Return what `args` ask for.

    Raises:
        UserError: a sentence that names the argument and the mend.
    """
    checkpoint = _checkpoint(snapshot, args)
    spec = snapshot.run.spec
    num_skipped = _number(args, "skip_steps", default=0, least=0, most=MAX_SKIP_STEPS)
    factor = args.get("lr_factor")
    lr_factor = None if factor is None else _number(args, "lr_factor", most=MAX_LR_FACTOR)
    if lr_factor is not None and lr_factor <= 0:
        raise UserError("lr_factor must be above 0.")
    forget = bool(args.get("forget_skips", False))
    base = inherited_skip(snapshot, spec, checkpoint, forget=forget)
    first = checkpoint.step + 1
    own = batches_of_steps(first, first + int(num_skipped) - 1, base) if num_skipped else ()
    windows = inherited_lr_windows(snapshot)
    if lr_factor is not None and lr_factor != 1:
        windows = (*windows, (first, max(first, spec.train.steps), float(lr_factor)))
    plan = _plan(snapshot, args)
    differs = [f"Batches {low} to {high} are skipped." for low, high in own]
    newest = snapshot.attempt
    dropped = forget and newest is not None and normalise(newest.skip) != base
    if dropped:
        differs.append("Batches that earlier rollbacks skipped are used again.")
    if lr_factor is not None and lr_factor != 1:
        differs.append(f"The learning rate is multiplied by {lr_factor:g} from step {first} on.")
    if plan is not None:
        differs.append(
            f"Another plan: {plan.replicas} replicas of {plan.stages} stages, "
            f"{plan.world_size} ranks."
        )
    return Restore(
        checkpoint=checkpoint,
        skip=normalise((*base, *own)),
        own_skip=own,
        lr_windows=windows,
        lr_factor=float(lr_factor) if lr_factor is not None else None,
        plan=plan,
        differs=tuple(differs),
    )


def restore_preview(
    snapshot: RunSnapshot, args: Mapping[str, Any], *, now: datetime
) -> RestorePreview:
    """Return what the restore would lose and change if it were asked now.

    Raises:
        UserError: the arguments ask for nothing that can be done.
    """
    restore = read(snapshot, args)
    checkpoint = restore.checkpoint
    current = newest_step(snapshot)
    on_lineage = is_on(surviving(snapshot), checkpoint)
    lost = current - checkpoint.step if on_lineage else current - _fork(snapshot, checkpoint)
    warnings = []
    if checkpoint.state != "trusted":
        read_back = (
            "and its bytes have not been read back" if checkpoint.verified_at is None else ""
        )
        warnings.append(
            f"It is {checkpoint.state}, not trusted: too few healthy steps followed it "
            f"{read_back}".rstrip()
            + "."
        )
    if not on_lineage:
        warnings.append(
            "It lies on a branch that a later generation left; that branch becomes the run's "
            "history again."
        )
    if any(each.first_bad_step <= checkpoint.step for each in snapshot.incidents):
        warnings.append("It was taken after the first bad step of an open incident.")
    unchanged = (
        "Nothing: the same state, data and draws follow, so the same steps come again bit for bit."
    )
    return RestorePreview(
        checkpoint=checkpoint.id,
        checkpoint_state=checkpoint.state,
        step=checkpoint.step,
        current_step=current,
        steps_lost=max(0, lost),
        seconds_lost=_seconds_since(snapshot, current - max(0, lost), now),
        differs=restore.differs or (unchanged,),
        warnings=tuple(warnings),
        refused=refusal(snapshot.run.state, "restore") or under_way(snapshot),
    )


def under_way(snapshot: RunSnapshot) -> str | None:
    """Return why no restore can begin while another one is not applied; None when there is none."""
    for request in snapshot.requests:
        if request.kind == "restore" and request.state == "accepted":
            return (
                f"restore is refused: the restore of {request.args.get('checkpoint')} that "
                f"{request.actor} asked for is not applied yet."
            )
    return None


def _checkpoint(snapshot: RunSnapshot, args: Mapping[str, Any]) -> Checkpoint:
    wanted = args.get("checkpoint")
    for checkpoint in snapshot.checkpoints:
        if checkpoint.id == wanted:
            if checkpoint.state not in GOOD or checkpoint.problem is not None:
                raise UserError(f"{checkpoint.id} cannot be restored: it is {checkpoint.state}.")
            return checkpoint
    usable = ", ".join(each.id for each in snapshot.checkpoints[-5:] if each.state in GOOD)
    raise UserError(
        f"{wanted!r} is no checkpoint of this run"
        + (f"; among the newest are {usable}." if usable else "; it has none yet.")
    )


def _number(
    args: Mapping[str, Any],
    name: str,
    *,
    most: float,
    least: float = 0,
    default: float | None = None,
) -> float:
    value = args.get(name, default)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}.")
    return value


def _plan(snapshot: RunSnapshot, args: Mapping[str, Any]) -> Plan | None:
    asked = args.get("plan")
    if asked is None:
        return None
    if isinstance(asked, Mapping) and set(asked) == {"parallel"}:
        asked = asked["parallel"]
    if not isinstance(asked, Mapping):
        raise UserError("plan must be a mapping, as under `parallel:` of a spec.")
    workload = snapshot.run.workload
    if workload is None:
        raise UserError("plan cannot be checked: no node has described the workload yet.")
    try:
        ask = ParallelAsk.model_validate(dict(asked))
    except ValidationError as error:
        raise SpecError(problems_of(error, ParallelAsk, Document(dict(asked)))) from error
    spec = snapshot.run.spec
    problem = parallel_problem(spec.train, ask) or other_bits(spec, spec.train, ask)
    if problem is not None:
        raise UserError(f"plan: {problem}.")
    plan = resolve(
        ask,
        num_layers=workload.num_layers,
        global_batch=spec.train.global_batch,
    )
    problems = workload_problems(
        plan, tensor_units=workload.tensor_units, brings_optimizer=workload.brings_optimizer
    )
    if problems:
        raise SpecError(problems)
    return plan


def _fork(snapshot: RunSnapshot, checkpoint: Checkpoint) -> int:
    """Return the last step that the surviving lineage shares with the checkpoint's branch."""
    lineage = surviving(snapshot)
    if checkpoint.generation in lineage:
        return lineage[checkpoint.generation]
    for attempt in snapshot.attempts:
        if attempt.generation == checkpoint.generation and attempt.parent_generation in lineage:
            assert attempt.parent_generation is not None
            return min(attempt.resumed_from_step, lineage[attempt.parent_generation])
    return 0


def _seconds_since(snapshot: RunSnapshot, step: int, now: datetime) -> float:
    """Return how long ago the first step after `step` ended, as far back as the window reaches."""
    later = [each.at for each in snapshot.windows.get("loss", ()) if each.step > step]
    return round(max(0.0, (now - min(later)).total_seconds()), 1) if later else 0.0
