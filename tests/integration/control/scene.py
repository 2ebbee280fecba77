"""A run with one living attempt on one node, and what its node and ranks say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import insert, select

from control.db import apply, asking, facts, tables
from control.db.facts import Said
from control.db.sql.engine import Database
from control.decision import AttemptEnd, Decision, NewAttempt, Placement
from trainmaster.facts import Batch, Columns, Event
from trainmaster.ids import agent_stream, rank_stream
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.wire import Device, Running, Sync

STORE = "file:///checkpoints"
AGENT = agent_stream("0001")


def spec(**changes: Any) -> RunSpec:
    given = {
        "name": "alpha",
        "workload": "somewhere:workload",
        "train": {"steps": 100, "global_batch": 8},
        "parallel": {"replicas": 1, "stages": 2, "micro_batch": 1},
        **changes,
    }
    return RunSpec.model_validate(given)


def plan(replicas: int = 1, stages: int = 2, layers: int = 4) -> Plan:
    ask = ParallelAsk(replicas=replicas, stages=stages, micro_batch=1)
    return resolve(ask, num_layers=layers, global_batch=8)


def columns(steps: Sequence[int], **values: Sequence[float | None]) -> Columns:
    return Columns(steps=list(steps), at=[1.7e9 + step for step in steps], values=dict(values))


def event(kind: str, **data: Any) -> Event:
    return Event(kind=kind, at=datetime(2026, 3, 1, tzinfo=UTC), data=data)


class Answer(NamedTuple):
    """What came of one sync."""

    cursors: Mapping[str, int]
    touched: frozenset[str]


@dataclass
class Scene:
    """One node `n1` with four slots; syncs are stored without HTTP."""

    db: Database
    clock: Any
    run: str = ""
    node: str = "n1"

    def submit(self, **changes: Any) -> str:
        with self.db.write() as connection:
            self.run, _ = asking.submit(
                connection,
                spec(**changes),
                store=STORE,
                actor="ann",
                key=None,
                now=self.clock.now(),
            )
        return self.run

    def begin(
        self,
        generation: int = 1,
        *,
        parent: int | None = None,
        resumed_from_step: int = 0,
        checkpoint: str | None = None,
        node: str = "n1",
        slots: Sequence[int] = (0, 1),
        run: str | None = None,
        under: Plan | None = None,
    ) -> None:
        """Begin a generation, ending the one before, as a turn would."""
        run = run or self.run
        before = generation - 1
        new = NewAttempt(
            generation=generation,
            parent_generation=parent,
            cause="for the test",
            cause_kind="start" if parent is None else "restore",
            plan=under or plan(),
            placements=tuple(Placement(rank, node, slot) for rank, slot in enumerate(slots)),
            checkpoint_every=10,
            resumed_from_step=resumed_from_step,
            resumed_from_checkpoint=checkpoint,
        )
        end = AttemptEnd(before, "failed", "for the test") if before else None
        self.decide(run, state="starting", new_attempt=new, attempt_end=end)

    def decide(self, run: str | None = None, **what: Any) -> None:
        run = run or self.run
        r = tables.runs.c
        now = self.clock.now()
        with self.db.write() as connection:
            version, touched = connection.execute(
                select(r.version, r.touched).where(r.id == run)
            ).one()
            decision = Decision(run=run, expected_version=version, next_look_at=now, **what)
            apply.apply(connection, decision, touched=touched, now=now)

    def sync(
        self,
        *batches: Batch,
        running: Sequence[Running] = (),
        node: str | None = None,
        boot: str = "b1",
        devices: Sequence[Device] = (),
    ) -> Answer:
        message = Sync(
            boot=boot,
            version="0",
            sent_at=self.clock.now(),
            address="127.0.0.1",
            slots=4,
            devices=list(devices),
            running=list(running),
            batches=list(batches),
        )
        # What travels is JSON: whatever does not survive it must not be tested for.
        message = Sync.model_validate_json(message.model_dump_json())
        with self.db.write() as connection:
            said = Said.of(node or self.node, message)
            stored = facts.store(connection, [said], now=self.clock.now())
            return Answer(stored.cursors[said.node], stored.touched)

    def batch(
        self,
        from_offset: int,
        to_offset: int,
        *,
        rank: int = 0,
        generation: int = 1,
        samples: Columns | None = None,
        events: Sequence[Event] = (),
    ) -> Batch:
        return Batch(
            stream=rank_stream(self.run, generation, rank),
            from_offset=from_offset,
            to_offset=to_offset,
            samples=samples,
            events=list(events),
        )

    def agent_batch(self, from_offset: int, to_offset: int, *events: Event) -> Batch:
        return Batch(
            stream=AGENT, from_offset=from_offset, to_offset=to_offset, events=list(events)
        )

    def row(self, table: Any, **where: Any) -> Mapping[str, Any]:
        found = self.rows(table, **where)
        assert len(found) == 1, found
        return found[0]

    def rows(self, table: Any, **where: Any) -> list[Mapping[str, Any]]:
        query = select(table).order_by(*table.primary_key)
        for name, value in where.items():
            query = query.where(table.c[name] == value)
        with self.db.read() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def insert(self, table: Any, **values: Any) -> None:
        with self.db.write() as connection:
            connection.execute(insert(table).values(**values))


def same(one: float | None, other: float | None) -> bool:
    """Whether two values are the same, NaN being the same as NaN."""
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))
