"""Does what `reconcile` asks for, and knows what runs: ranks, stores and inboxes of this node."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, Signals

from trainmaster.errors import ExitCode
from trainmaster.home import Home, identity, signal_process, write_atomically
from trainmaster.ids import parse_rank_stream
from trainmaster.layout import roles
from trainmaster.wire import Device, Running
from worker.agent import pulses, records
from worker.agent.devices import device_of_slot
from worker.agent.nest_process import NestEnded, NestProcess
from worker.agent.reconcile import (
    Action,
    CloseStore,
    Generation,
    HostStore,
    RankKey,
    RankSeen,
    Seen,
    StartRank,
    StopGeneration,
    WriteInbox,
)
from worker.agent.records import RankRecord
from worker.agent.starvation import Starvation
from worker.launch import Emulation, Inbox, Launch
from worker.nest import messages
from worker.nest.messages import Exited, Fact, Forked, Ready, Said
from worker.reporting.pulsefile import STACKS_SUFFIX

TERM_GRACE_S = 1.0
"""Between asking a rank to end and ending it."""
DEATH_WAIT_S = 5.0
"""How long a killed process may take to be gone before the agent goes on without it."""
_STORE = "store:"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rank:
    record: RankRecord
    exited_mono: float | None = None


@dataclass(slots=True)
class _Store:
    pid: int | None = None
    started: str = ""
    address: str | None = None


@dataclass(slots=True)
class _Stop:
    because: str
    kill_at: float


class Launcher:
    """Starts, ends and remembers. Decides nothing.

    Args:
        address: the host under which ranks on other nodes reach a store here.
        tell: takes an event's kind and data for the journal.
        memory: returns a run's folder in memory.
        now: the clock, monotonic seconds.
    """

    def __init__(
        self,
        *,
        home: Home,
        node: str,
        address: str,
        emulation: Emulation,
        devices: Sequence[Device],
        nest: NestProcess,
        tell: Callable[[str, dict[str, object]], None],
        memory: Callable[[str], Path | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._node = node
        self._address = address
        self._emulation = emulation
        self._devices = devices
        self._nest = nest
        self._tell = tell
        self._memory = memory
        self._now = now
        self._starvation = Starvation()
        self._ranks: dict[RankKey, _Rank] = {}
        self._stores: dict[Generation, _Store] = {}
        self._inboxes: dict[Generation, Inbox] = {}
        self._stops: dict[Generation, _Stop] = {}

    def adopt(self, *, reported: Iterable[RankKey]) -> None:
        """Remember the ranks of earlier lives, and end those that still live.

        Args:
            reported: ranks whose exit stands in a journal, whatever their record says.
        """
        told = set(reported)
        for record in records.load(self._home.node(self._node)):
            known = record.model_copy(update={"reported": record.reported or record.key in told})
            self._ranks[known.key] = _Rank(known, 0.0)
            if known.exited_at is None:
                if known.pid is not None:
                    _end(known.pid, known.started)
                self._exited(
                    known.key, None, SIGKILL, f"rank {known.rank} died with its node's agent"
                )

    def seen(self) -> Seen:
        """Return what runs, as `reconcile` takes it."""
        return Seen(
            nest_ready=self._nest.ready,
            ranks={key: _seen(rank) for key, rank in self._ranks.items()},
            stores={key: store.address for key, store in self._stores.items()},
            inboxes=dict(self._inboxes),
            stopping=frozenset(self._stops),
        )

    def running(self) -> list[Running]:
        """Return what runs, as `sync` tells it."""
        found: dict[Generation, Running] = {
            key: Running(run=key[0], generation=key[1], store=store.address)
            for key, store in self._stores.items()
        }
        for (run, generation, number), rank in self._ranks.items():
            record = rank.record
            if record.exited_at is not None or record.pid is None:
                continue
            at = found.setdefault((run, generation), Running(run=run, generation=generation))
            pulse = pulses.look(self.spool(record), record.pid)
            update = {
                "ranks": {**at.ranks, number: record.pid},
                "pulses": at.pulses if pulse is None else {**at.pulses, number: pulse},
            }
            found[run, generation] = at.model_copy(update=update)
        return [found[key] for key in sorted(found)]

    def unreported(self) -> list[RankRecord]:
        """Return the ranks that have exited and whose exit is not yet in the journal."""
        ranks = (rank.record for rank in self._ranks.values())
        return [record for record in ranks if record.exited_at is not None and not record.reported]

    def mark_reported(self, key: RankKey) -> None:
        """Remember that the exit of a rank stands in the journal."""
        self._update(key, reported=True)

    def known(self) -> list[RankRecord]:
        """Return all ranks that this node remembers."""
        return [rank.record for rank in self._ranks.values()]

    def forget(self, run: str, generation: int) -> None:
        """Forget the ranks of a generation, all of which have exited."""
        for key in [key for key in self._ranks if key[:2] == (run, generation)]:
            del self._ranks[key]
        self._inboxes.pop((run, generation), None)

    def spool(self, record: RankRecord) -> Path:
        """Return the spool of a rank."""
        return self._folder(record.run, record.generation) / f"rank-{record.rank}.spool"

    def stacks(self, record: RankRecord) -> Path:
        """Return where a rank writes its stacks when it is asked for them."""
        return self.spool(record).with_suffix(STACKS_SUFFIX)

    def printed(self, record: RankRecord) -> Path:
        """Return what a rank printed."""
        return self._home.rank_log(self._node, record.run, record.generation, record.rank)

    def do(self, action: Action) -> None:
        """Carry out one action. A rank that cannot be started has exited before it ran."""
        match action:
            case HostStore(run, generation):
                self._host_store(run, generation)
            case CloseStore(run, generation):
                store = self._stores[run, generation]
                if store.pid is not None:
                    signal_process(store.pid, store.started, SIGKILL, group=True)
            case WriteInbox(run, generation, inbox):
                self._write_inbox(run, generation, inbox)
            case StartRank():
                self._start(action)
            case StopGeneration(run, generation, because):
                told = {"run": run, "generation": generation}
                log.info("ending generation %d of run %s: %s", generation, run, because, extra=told)
                self._stops[run, generation] = _Stop(because, self._now() + TERM_GRACE_S)
                self._signal(run, generation, SIGTERM)

    def poll(self) -> list[Fact]:
        """Take in what has happened; return what the nest said of other children."""
        others: list[Fact] = []
        if self._nest.start(self._now()):
            assert self._nest.pid is not None
            log.info("nest started (pid %d)", self._nest.pid)
        for fact in self._nest.poll(self._now()):
            match fact:
                case NestEnded():
                    self._nest_ended(fact)
                case Ready():
                    log.info("nest ready after %.1f s", fact.import_s)
                case _ if parse_rank_stream(fact.name) is not None:
                    self._about_rank(fact)
                case _ if fact.name.startswith(_STORE):
                    self._about_store(fact)
                case _:
                    others.append(fact)
        self._press_stops()
        return others

    def wake(self, key: RankKey) -> None:
        """Let a rank that was stopped by a signal go on, if it still lives."""
        rank = self._ranks.get(key)
        if rank is not None and _lives(rank) and rank.record.pid is not None:
            signal_process(rank.record.pid, rank.record.started, SIGCONT)

    def end(self) -> None:
        """End everything that runs here; returns when it is dead, or given up as unkillable."""
        for run, generation in {key[:2] for key, rank in self._ranks.items() if _lives(rank)}:
            self.do(StopGeneration(run, generation, "it stops"))
        deadline = self._now() + TERM_GRACE_S + DEATH_WAIT_S
        while any(map(_lives, self._ranks.values())) and self._now() < deadline:
            self.poll()
            time.sleep(0.01)
        self._nest.end()

    def _folder(self, run: str, generation: int) -> Path:
        return self._home.attempt(self._node, run, generation)

    def _host_store(self, run: str, generation: int) -> None:
        folder = self._folder(run, generation)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_STORE}{run}/{generation}"
        if self._nest.send(messages.HostStore(name=name, log=folder / "store.log")):
            self._stores[run, generation] = _Store()

    def _write_inbox(self, run: str, generation: int, inbox: Inbox) -> None:
        path = self._folder(run, generation) / "inbox.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, inbox.model_dump_json().encode())
        except OSError as error:
            log.warning("%s cannot be written, trying again: %s", path, error)
            return
        self._inboxes[run, generation] = inbox

    def _start(self, action: StartRank) -> None:
        assignment, rank = action.assignment, action.rank
        self._starvation.look()
        role = roles(assignment.plan)[rank]
        folder = self._folder(assignment.run, assignment.generation)
        record = RankRecord(
            run=assignment.run,
            generation=assignment.generation,
            rank=rank,
            slot=action.slot,
            replica=role.replica,
            stage=role.stage,
        )
        self._ranks[record.key] = _Rank(record)
        launch = Launch(
            assignment=assignment,
            rank=rank,
            node=self._node,
            spool=self.spool(record),
            inbox=folder / "inbox.json",
            memory=self._memory(assignment.run),
            emulation=self._emulation,
            device=device_of_slot(self._devices, action.slot),
        )
        path = folder / f"launch-{rank}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            records.save(folder, record)
            write_atomically(path, launch.model_dump_json().encode())
        except OSError as error:
            self._exited(record.key, ExitCode.IO, None, f"{path} cannot be written: {error}")
            return
        request = messages.StartRank(name=record.stream, launch=path, log=self.printed(record))
        if not self._nest.send(request):
            self._exited(record.key, ExitCode.TRY_AGAIN, None, "the nest was gone")

    def _about_rank(self, fact: Forked | Said | Exited) -> None:
        key = parse_rank_stream(fact.name)
        assert key is not None
        if isinstance(fact, Forked):
            self._update(key, pid=fact.pid, started=fact.started)
            self._tell("rank_started", _naming(key) | {"pid": fact.pid})
        elif isinstance(fact, Exited):
            stop = self._stops.get(key[:2])
            because = f"rank {key[2]} was ended by its agent: {stop.because}" if stop else None
            if stop is not None:
                self._update(key, stopped=True)
            elif fact.signal == SIGKILL:
                self._update(key, evidence=self._starvation.evidence())
            self._exited(key, fact.exit_code, fact.signal, because)

    def _about_store(self, fact: Forked | Said | Exited) -> None:
        run, _, number = fact.name.removeprefix(_STORE).rpartition("/")
        store = self._stores.get((run, int(number)))
        match fact:
            case Exited():
                self._stores.pop((run, int(number)), None)
            case Forked() if store is not None:
                store.pid, store.started = fact.pid, fact.started
            case Said() if store is not None and fact.text:
                host = f"[{self._address}]" if ":" in self._address else self._address
                store.address = f"{host}:{json.loads(fact.text)}"

    def _exited(
        self, key: RankKey, exit_code: int | None, number: int | None, because: str | None
    ) -> None:
        how = f"exit code {exit_code}" if number is None else f"signal {number}"
        told = _about(key)
        log.info("rank %d of generation %d of run %s ended: %s", *reversed(key), how, extra=told)
        self._update(
            key, exit_code=exit_code, signal=number, because=because, exited_at=datetime.now(UTC)
        )
        self._ranks[key].exited_mono = self._now()
        if not any(_lives(rank) for other, rank in self._ranks.items() if other[:2] == key[:2]):
            self._stops.pop(key[:2], None)

    def _update(self, key: RankKey, **changes: object) -> None:
        rank = self._ranks[key]
        rank.record = rank.record.model_copy(update=changes)
        try:
            records.save(self._folder(*key[:2]), rank.record)
        except OSError as error:
            words = "the record of rank %d cannot be written: %s"
            log.warning(words, key[2], error, extra=_about(key))

    def _nest_ended(self, fact: NestEnded) -> None:
        how = f"exit code {fact.exit_code}" if fact.signal is None else f"signal {fact.signal}"
        log.warning("the nest ended: %s", how)
        self._tell("nest_exited", {"exit_code": fact.exit_code, "signal": fact.signal})
        for key, rank in list(self._ranks.items()):
            if _lives(rank):
                if rank.record.pid is not None:
                    _end(rank.record.pid, rank.record.started)
                self._exited(key, None, SIGKILL, f"rank {key[2]} died with its nest ({how})")
        self._stores.clear()

    def _press_stops(self) -> None:
        for (run, generation), stop in self._stops.items():
            if self._now() >= stop.kill_at:
                self._signal(run, generation, SIGKILL)

    def _signal(self, run: str, generation: int, number: Signals) -> None:
        for key, rank in self._ranks.items():
            pid = rank.record.pid
            if key[:2] == (run, generation) and _lives(rank) and pid is not None:
                signal_process(pid, rank.record.started, number, group=True)


def _about(key: RankKey) -> dict[str, str | int]:
    return dict(zip(("run", "generation", "rank"), key, strict=True))


def _lives(rank: _Rank) -> bool:
    return rank.record.exited_at is None


def _seen(rank: _Rank) -> RankSeen:
    record = rank.record
    if record.exited_at is not None:
        return RankSeen(record.slot, "exited", record.failed, rank.exited_mono)
    return RankSeen(record.slot, "starting" if record.pid is None else "alive")


def _naming(key: RankKey) -> dict[str, object]:
    return dict(zip(("run", "generation", "rank"), key, strict=True))


def _end(pid: int, started: str) -> None:
    """Kill a process and wait until it is gone; reap it if it has become ours."""
    signal_process(pid, started, SIGKILL, group=True)
    deadline = time.monotonic() + DEATH_WAIT_S
    while identity(pid) == started and time.monotonic() < deadline:
        time.sleep(0.005)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
