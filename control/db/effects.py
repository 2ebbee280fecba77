"""What follows from an event that a rank or an agent tells: one small function per kind, and
nothing for kinds without consequence.

Fencing: a rank's row, an order's row and the samples belong to their generation, so a superseded
one can only add to its own history. The one thing that would reach further, a checkpoint, is stored
as abandoned when its generation is no longer the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, update

from control.db import copies, tables, upkeep
from control.db.fleet import chores
from control.db.samples import chunks, samples
from control.db.samples.segments import Segment
from control.db.sql.upsert import upsert
from control.db.sql.values import number_word, whole
from trainmaster.ids import checkpoint_id
from trainmaster.storage import MEMORY_SCHEME

MAX_STACKS_CHARS = 30_000
MAX_WORD_CHARS = 40
_RANK_STATES = ("assigned", "started", "ready", "exited")


@dataclass(frozen=True, slots=True)
class Told:
    """One event, and who told it: a rank, or an agent when `boot` is set.

    `data` is clean JSON, but what is in it was written outside and is not to be trusted.
    """

    run: str | None
    generation: int | None
    rank: int | None
    node: str
    actor: str
    kind: str
    at: datetime
    data: Mapping[str, Any]
    boot: str | None = None


def take_effect(connection: Connection, told: Told, *, now: datetime) -> str | None:
    """Change what follows from the event; return the run that it is news for, if the event does not
    name it.
    """
    if told.kind == "chore_done":
        return _chore_done(connection, told, now)
    effect = _EFFECTS.get(told.kind) if told.boot is None else _AGENT_EFFECTS.get(told.kind)
    if effect is not None and told.run is not None and told.generation is not None:
        effect(connection, told, now)
    return None


def _chore_done(connection: Connection, told: Told, now: datetime) -> str | None:
    answered = chores.answer(connection, told.node, told.data, now=now)
    if answered is None:
        return None
    if answered.kind == "list" and answered.run is not None:
        upkeep.listed(connection, answered.run, told.node, answered.args, answered.result, now=now)
    return answered.run


def sentence(told: Told) -> str:
    """Return why or how it happened, in words, where the teller said so."""
    said = told.data.get("because") or told.data.get("message")
    if isinstance(said, str):
        return said
    if told.kind == "rank_exited":
        return ended_how(told.rank, told.data)
    return ""


def ended_how(rank: int | None, data: Mapping[str, Any]) -> str:
    """Return how a process ended, in words."""
    who = f"rank {rank}" if rank is not None else "a process"
    signal, code = data.get("signal"), data.get("exit_code")
    return f"{who} killed by signal {signal}" if signal else f"{who} ended with exit code {code}"


def _rank_started(connection: Connection, told: Told, now: datetime) -> None:
    """A rank may have met the others, or even ended, before its agent's word of its start is read:
    whose process it is must be known all the same.
    """
    c = tables.ranks.c
    process = {"pid": whole(told.data.get("pid")), "boot": told.boot}
    connection.execute(
        update(tables.ranks).where(*_of_rank(told), c.boot.is_(None)).values(**process)
    )
    _advance(connection, told, "started", now)


def _rank_ready(connection: Connection, told: Told, now: datetime) -> None:
    _advance(connection, told, "ready", now)
    r, a = tables.ranks.c, tables.attempts.c
    of_attempt = (r.run == told.run, r.generation == told.generation)
    waiting = connection.scalar(
        select(func.count())
        .select_from(tables.ranks)
        .where(*of_attempt, r.state.in_(("assigned", "started")))
    )
    if waiting == 0:
        connection.execute(
            update(tables.attempts)
            .where(a.run == told.run, a.generation == told.generation, a.ready_at.is_(None))
            .values(ready_at=now)
        )


def _rank_exited(connection: Connection, told: Told, now: datetime) -> None:
    _advance(
        connection,
        told,
        "exited",
        now,
        exit_code=whole(told.data.get("exit_code")),
        signal=whole(told.data.get("signal")),
        exited_at=told.at,
        stopped=told.data.get("stopped") is True,
    )
    evidence = told.data.get("evidence")
    if isinstance(evidence, str):
        said = {"because": evidence, "out_of_memory": told.data.get("out_of_memory") is True}
        _rank_failed(connection, replace(told, data=said), now)


def _rank_failed(connection: Connection, told: Told, now: datetime) -> None:
    """Keep the first word: a restore that failed is followed by the end of its rank."""
    connection.execute(
        update(tables.ranks)
        .where(*_of_rank(told), tables.ranks.c.failure.is_(None))
        .values(failure={"kind": told.kind, **told.data})
    )


def _rank_finished(connection: Connection, told: Told, now: datetime) -> None:
    connection.execute(update(tables.ranks).where(*_of_rank(told)).values(finished=dict(told.data)))


def _checkpoint_committed(connection: Connection, told: Told, now: datetime) -> None:
    location, digest = told.data.get("location"), told.data.get("manifest_sha256")
    step = whole(told.data.get("step"))
    if step is None or step < 1 or not (isinstance(location, str) and isinstance(digest, str)):
        return
    assert told.run is not None
    assert told.generation is not None
    if not copies.may_lie_at(connection, location, told.run, told.generation, step):
        return
    if not location.startswith(MEMORY_SCHEME):
        _forget_kept(connection, told, step)
    superseded = _is_superseded(connection, told.run, told.generation)
    a = tables.attempts.c
    parent = connection.scalar(
        select(a.resumed_from_checkpoint).where(a.run == told.run, a.generation == told.generation)
    )
    row = {
        "id": checkpoint_id(told.run, told.generation, step),
        "run": told.run,
        "generation": told.generation,
        "step": step,
        "parent": parent,
        "state": "committed",
        "abandoned": superseded,
        "pinned": False,
        "bytes": whole(told.data.get("bytes")) or 0,
        "files": _count(told.data.get("files")),
        "location": location,
        "manifest_sha256": digest,
        "created_at": told.at,
        "tries": 0,
        "loss": _loss_at(connection, told.run, told.generation, step),
        "because": f"committed by generation {told.generation} after it was superseded"
        if superseded
        else "",
    }
    # A generation commits a step once; a second telling must not undo a judgement passed since.
    upsert(
        connection,
        tables.checkpoints,
        [row],
        keep=[name for name in row if name not in {"bytes", "files"}],
    )
    copies.begin(connection, row, node=told.node)


def _copy_passed_over(connection: Connection, told: Told, now: datetime) -> None:
    location = told.data.get("location")
    if told.data.get("damaged") is not True or not isinstance(location, str):
        return
    if copies.lies_on(connection, location, told.node):
        copies.read(connection, location, sentence(told), now=now)


def _state_kept(connection: Connection, told: Told, now: datetime) -> None:
    """Nodes hold a state in memory in place of any before it; one that is stored too is known."""
    step = whole(told.data.get("step"))
    _retire_kept(connection, told, "A newer state has taken its place in memory.", but_step=step)
    if told.data.get("stored") is not True:
        _checkpoint_committed(connection, told, now)


def _state_dropped(connection: Connection, told: Told, now: datetime) -> None:
    _retire_kept(connection, told, sentence(told))


def _retire_kept(
    connection: Connection, told: Told, because: str, *, but_step: int | None = None
) -> None:
    """What was in memory alone is there no more."""
    c = tables.checkpoints.c
    connection.execute(
        update(tables.checkpoints)
        .where(
            c.run == told.run,
            c.generation <= told.generation,
            c.location.startswith(MEMORY_SCHEME),
            c.state == "committed",
            or_(c.generation != told.generation, c.step != (but_step or 0)),
        )
        .values(state="retired", because=because)
    )


def _forget_kept(connection: Connection, told: Told, step: int) -> None:
    """What was in memory alone has been stored under the same name."""
    c = tables.checkpoints.c
    connection.execute(
        delete(tables.checkpoints).where(
            c.run == told.run,
            c.generation == told.generation,
            c.step == step,
            c.location.startswith(MEMORY_SCHEME),
        )
    )


def _interval_chosen(connection: Connection, told: Told, now: datetime) -> None:
    every = whole(told.data.get("every_steps"))
    a = tables.attempts.c
    if every is not None and every >= 1:
        connection.execute(
            update(tables.attempts)
            .where(a.run == told.run, a.generation == told.generation)
            .values(checkpoint_every=every)
        )


def _loss_at(connection: Connection, run: str, generation: int, step: int) -> float | str | None:
    """Return the loss of a step, None while its sample has not come (see `facts`)."""
    found = samples.read(connection, run, "loss", [Segment(generation, step - 1, step)])
    if len(found) == 0 or bool(chunks.missing(found.values)[0]):
        return None
    return number_word(float(found.values[0]))


def _order_changed(connection: Connection, told: Told, now: datetime) -> None:
    c = tables.orders.c
    state = told.kind.removeprefix("order_")
    before = ("sent",) if state == "received" else ("sent", "received")
    connection.execute(
        update(tables.orders)
        .where(
            c.run == told.run,
            c.generation == told.generation,
            c.seq == whole(told.data.get("seq")),
            c.state.in_(before),
        )
        .values(
            state=state, step=whole(told.data.get("step")), because=sentence(told), changed_at=now
        )
    )


def _drill_fired(connection: Connection, told: Told, now: datetime) -> None:
    c = tables.drills.c
    of_drill = (
        c.run == told.run,
        c.generation == told.generation,
        c.id == whole(told.data.get("id")),
    )
    row = connection.execute(select(c.fired).where(*of_drill)).one_or_none()
    step = whole(told.data.get("step"))
    if row is None or step is None:
        return
    fired = [told.generation, step, whole(told.data.get("batch")) or step]
    if fired not in row.fired:
        connection.execute(update(tables.drills).where(*of_drill).values(fired=[*row.fired, fired]))


def _stacks_dumped(connection: Connection, told: Told, now: datetime) -> None:
    call = whole(told.data.get("id"))
    a = tables.attempts.c
    calls = connection.scalar(
        select(a.stacks).where(a.run == told.run, a.generation == told.generation)
    )
    asked = next((each for each in calls or () if each["id"] == call), None)
    if asked is None or told.rank is None:
        return
    row = {
        "run": told.run,
        "generation": told.generation,
        "id": call,
        "rank": told.rank,
        "node": told.node,
        "at": told.at,
        "how": _text(told.data.get("how"), MAX_WORD_CHARS),
        "text": _text(told.data.get("text"), MAX_STACKS_CHARS),
        "because": _text(told.data.get("because"), MAX_STACKS_CHARS),
        "incident": asked["incident"],
    }
    upsert(connection, tables.stacks, [row])


def shown(told: Told) -> Mapping[str, Any]:
    """Return the data of the event as its history keeps it: stacks have a table of their own."""
    if told.kind != "stacks_dumped":
        return told.data
    return {name: value for name, value in told.data.items() if name != "text"}


def _text(value: Any, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""


Effect = Callable[[Connection, Told, datetime], None]

_EFFECTS: Mapping[str, Effect] = {
    "rank_ready": _rank_ready,
    "rank_failed": _rank_failed,
    "restore_failed": _rank_failed,
    "copy_passed_over": _copy_passed_over,
    "rank_finished": _rank_finished,
    "checkpoint_committed": _checkpoint_committed,
    "state_kept": _state_kept,
    "state_dropped": _state_dropped,
    "memory_given_up": _state_dropped,
    "interval_chosen": _interval_chosen,
    "order_received": _order_changed,
    "order_applied": _order_changed,
    "order_refused": _order_changed,
    "drill_fired": _drill_fired,
}
_AGENT_EFFECTS: Mapping[str, Effect] = {
    "rank_started": _rank_started,
    "rank_exited": _rank_exited,
    "state_dropped": _state_dropped,
    "drill_fired": _drill_fired,
    "stacks_dumped": _stacks_dumped,
}


def _advance(connection: Connection, told: Told, state: str, now: datetime, **values: Any) -> None:
    """Move a rank forwards: streams of a rank and of its agent arrive apart, so an older state may
    be told later.
    """
    c = tables.ranks.c
    known = {name: value for name, value in values.items() if value is not None}
    earlier = _RANK_STATES[: _RANK_STATES.index(state)]
    connection.execute(
        update(tables.ranks)
        .where(*_of_rank(told), c.state.in_(earlier))
        .values(state=state, last_seen_at=now, **known)
    )


def _of_rank(told: Told) -> tuple[Any, ...]:
    c = tables.ranks.c
    # An agent speaks of the ranks that were given to its node, and of no others.
    return (
        c.run == told.run,
        c.generation == told.generation,
        c.rank == told.rank,
        c.node == told.node,
    )


def _is_superseded(connection: Connection, run: str, generation: int) -> bool:
    current = connection.scalar(select(tables.runs.c.generation).where(tables.runs.c.id == run))
    return current is not None and generation < current


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else whole(value) or 0
