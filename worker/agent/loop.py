"""The agent's loop: what happened, what should be, what to do, what to tell."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from trainmaster import __version__
from trainmaster.errors import UserError
from trainmaster.wire import Assignment, Device, Sync
from worker.agent import leftovers
from worker.agent.chores import Chores, log_tail
from worker.agent.device_watch import DeviceWatch
from worker.agent.devices import device_of_slot
from worker.agent.drills import DrillWatch
from worker.agent.exchange import Answer, Exchange, SyncClient
from worker.agent.exporter import Exporter
from worker.agent.jobs import Jobs
from worker.agent.journal import Journal, journal_events, journal_files
from worker.agent.launcher import Launcher
from worker.agent.memory import Memory, root_below
from worker.agent.neighbours import Neighbours
from worker.agent.nest_process import NestProcess
from worker.agent.nvml import Nvml
from worker.agent.reconcile import RankKey, reconcile, waits
from worker.agent.records import RankRecord
from worker.agent.settings import Settings
from worker.agent.spools import Spools
from worker.agent.stacks import StackWatch

TICK_S = 0.1
CATCH_UP_BYTES = 64 << 10
"""With more than this to be stored the next sync does not wait for its time."""
ASK_ALL_EVERY_S = 60.0
SWEEP_EVERY_S = 10.0
EAGER_S = 15.0
"""For so long after it began to wait for the control plane an agent asks more often."""
FAREWELL_S = 2.0
"""How long a stopping agent tries to tell the control plane how its ranks ended."""
CRASH_PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Agent:
    """One node's agent. All of it runs in one thread, but calls that wait for disks or networks.

    Args:
        metrics_port: where the exporter is served; None if nowhere.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: SyncClient,
        nest: NestProcess,
        exporter: Exporter,
        devices: list[Device],
        nvml: Nvml | None = None,
        slots: int,
        metrics_port: int | None,
    ) -> None:
        self._settings = settings
        self._devices = devices
        self._slots = slots
        self._metrics_port = metrics_port
        self._exporter = exporter
        self._nest = nest
        self._nest_pid: int | None = None
        self._nest_recorded: int | None = None
        self._folder = settings.home.node(settings.node)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._boot = secrets.token_hex(8)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._calls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sync")
        self._work = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chore")
        self._long = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long-chore")
        self._jobs = Jobs(copy_bytes_per_s=settings.copy_bytes_per_s)
        # Of their own: a chore may read a checkpoint for minutes.
        self._watching = ThreadPoolExecutor(max_workers=4, thread_name_prefix="watch")
        self._exchange = Exchange(
            client, settings.node, executor=self._calls, wake=self.wake, vitals=exporter.vitals
        )
        self._spools = Spools()
        self._reported = set(_reported_exits(journal_events(self._folder)))
        for stream, path in journal_files(self._folder).items():
            self._spools.add(stream, path, cursor=None, tail=False)
        self._journal = Journal(self._folder)
        self._memory = Memory(
            root_below(settings.memory, settings.home, settings.node), tell=self._tell
        )
        self._launcher = Launcher(
            home=settings.home,
            node=settings.node,
            address=settings.address,
            emulation=settings.emulation,
            devices=devices,
            nest=nest,
            tell=self._tell,
            memory=self._memory.folder,
        )
        self._chores = Chores(
            nest=nest,
            device=device_of_slot(devices, 0),
            emulation=settings.emulation,
            log=self._folder / "chores.log",
            jobs=self._jobs,
            executor=self._work,
            long=self._long,
            link_token=partial(client.link_token, settings.node),
            tell=self._tell,
            wake=self.wake,
        )
        self._drills = DrillWatch(settings.node)
        self._device_watch = DeviceWatch(
            nvml,
            exporter.health,
            executor=self._watching,
            tell=self._tell,
            wake=self.wake,
        )
        self._stacks = StackWatch(executor=self._watching, tell=self._tell, wake=self.wake)
        self._neighbours = Neighbours(settings.node, executor=self._watching, wake=self.wake)
        self._assignments: list[Assignment] = []
        self._news = True
        self._stopping = False
        self._ask_all_at = 0.0
        self._sweep_at = 0.0
        self._eager_until = 0.0
        self._shown: set[RankKey] = set()
        self._stepping: set[str] = set()
        self._damaged: set[str] = set()

    def wake(self) -> None:
        """Have the loop look again at once; for any thread and for signal handlers."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def stop(self) -> None:
        """Have `run` end everything that runs here, tell how it ended, and return."""
        self._stopping = True
        self.wake()

    def run(self, every_turn: Callable[[], None] = lambda: None) -> None:
        """Do as the control plane asks until `stop` is called."""
        self._tell("node_started", {"boot": self._boot})
        self._launcher.adopt(reported=self._reported)
        self._memory.clear()
        for record in self._launcher.known():
            self._spools.add(record.stream, self._launcher.spool(record), cursor=None, tail=False)
        while not self._stopping:
            try:
                with self._exporter.vitals.turn():
                    self.turn(time.monotonic())
                    every_turn()
            except Exception:
                # Ranks train on whatever becomes of one turn; the next one begins from what is.
                log.exception("a turn of the agent failed")
                time.sleep(CRASH_PAUSE_S)
            self._wait()
        self._farewell()

    def turn(self, now: float) -> None:
        """Look once at everything there is."""
        self._hear_nest()
        answer = self._exchange.poll(now)
        if answer is not None:
            self._obey(answer)
        for action in reconcile(self._assignments, self._launcher.seen(), now=now):
            self._launcher.do(action)
        self._look_at_spools(now)
        self._suffer_drills(now)
        self._chores.poll()
        self._device_watch.poll(now)
        self._stacks.offer(self._assignments, self._launcher.known(), self._launcher.stacks)
        self._stacks.poll()
        self._neighbours.look(self._assignments, now, cut_off=self._exchange.troubled)
        self._report_damage()
        self._report_exits()
        if now >= self._ask_all_at:
            self._spools.ask_all()
            self._news = True
            self._ask_all_at = now + ASK_ALL_EVERY_S
        if now >= self._sweep_at:
            self._sweep()
            self._memory.sweep(self._busy_runs(), now)
            self._sweep_at = now + SWEEP_EVERY_S
        waiting = waits(self._assignments, self._launcher.seen())
        if not waiting:
            self._eager_until = now + EAGER_S
        eager = waiting and now < self._eager_until
        if self._exchange.free(now, news=self._news, eager=eager):
            self._exchange.send(self._message(now))
            self._news = False

    def _tell(self, kind: str, data: dict[str, Any], at: datetime | None = None) -> None:
        self._journal.append(kind, data, at)
        self._spools.add(self._journal.stream, self._journal.path, cursor=0, tail=False)
        self._news = True

    def _hear_nest(self) -> None:
        before = self._launcher.running()
        for fact in self._launcher.poll():
            self._chores.hear(fact)
        if self._nest.pid != self._nest_pid:
            self._nest_pid = self._nest.pid
            self._chores.nest_ended()
        if self._nest_pid != self._nest_recorded:
            self._record_nest()
        self._news = self._news or _levels(before) != _levels(self._launcher.running())

    def _record_nest(self) -> None:
        """Write the nest down for `ps`; where the disk is full, once it is not."""
        if self._nest_pid is not None:
            try:
                self._settings.home.record_process(self._settings.nest_name, self._nest_pid)
            except (OSError, UserError):
                return
        self._nest_recorded = self._nest_pid

    def _obey(self, answer: Answer) -> None:
        reply = answer.reply
        if answer.recovered:
            self._ask_all_at = 0.0
        if self._spools.accept(answer.sent, reply.cursors):
            self._news = self._news or self._spools.lag() > CATCH_UP_BYTES
        self._assignments = reply.assignments
        self._chores.offer(reply.chores)

    def _look_at_spools(self, now: float) -> None:
        for record in self._launcher.known():
            if record.key in self._shown or record.pid is None:
                continue
            self._shown.add(record.key)
            if record.exited_at is None:
                self._exporter.begin(record, time.time())
            self._spools.add(record.stream, self._launcher.spool(record), cursor=0, tail=True)
        for stream, frames in self._spools.tail():
            self._exporter.take(stream, frames)
            self._drills.hear(
                stream,
                step=frames.last_step,
                events=frames.events,
                assignments=self._assignments,
                now=now,
            )
            self._news = self._news or bool(frames.events) or stream not in self._stepping
            if frames.samples:
                self._stepping.add(stream)
        self._exporter.sweep(now)

    def _suffer_drills(self, now: float) -> None:
        for key in self._drills.to_wake(now):
            self._launcher.wake(key)
        for cut in self._drills.cuts(self._assignments):
            data = {"run": cut.run, "generation": cut.generation, "step": cut.step}
            self._tell("drill_fired", {**data, "id": cut.drill.id, "fault": cut.drill.fault})
            self._exchange.pause(now + cut.drill.duration_s)

    def _report_damage(self) -> None:
        for stream, because in self._spools.damaged().items():
            if stream not in self._damaged:
                self._damaged.add(stream)
                log.error("%s: %s", stream, because)
                self._tell("spool_damaged", {"stream": stream, "because": because})

    def _report_exits(self) -> None:
        """Write exits into the journal, each once its rank's last words are stored."""
        for record in self._launcher.unreported():
            self._exporter.end(record, time.monotonic())
            self._spools.add(record.stream, self._launcher.spool(record), cursor=0, tail=True)
            if not self._spools.settled(record.stream):
                self._news = True
                continue
            data: dict[str, Any] = {
                "run": record.run,
                "generation": record.generation,
                "rank": record.rank,
                "exit_code": record.exit_code,
                "signal": record.signal,
                "stopped": record.stopped,
                "because": record.because,
            }
            if record.evidence is not None:
                data |= {"evidence": record.evidence, "out_of_memory": True}
            if record.failed:
                data["log_tail"] = log_tail(self._launcher.printed(record))
            self._tell("rank_exited", data, record.exited_at)
            self._launcher.mark_reported(record.key)

    def _message(self, now: float) -> Sync:
        settings = self._settings
        self._exporter.vitals.unsent_bytes = self._spools.lag()
        return Sync(
            protocol=self._exchange.protocol,
            boot=self._boot,
            version=__version__,
            sent_at=datetime.now(UTC),
            address=settings.address,
            metrics_port=self._metrics_port,
            slots=self._slots,
            devices=self._devices,
            labels=dict(settings.labels),
            profile=settings.emulation.model_dump(mode="json", exclude_defaults=True),
            running=self._launcher.running(),
            reaches=self._neighbours.news(now),
            batches=self._spools.batches(protocol=self._exchange.protocol),
        )

    def _wait(self) -> None:
        ears = [ear for ear in (self._wake_read, self._nest.ear) if ear is not None]
        ready, _, _ = select.select(ears, [], [], TICK_S)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)

    def _sweep(self) -> None:
        """Remove what nobody will ask for any more."""
        old = time.time() - self._settings.retention_s
        for stream, path in journal_files(self._folder).items():
            if stream != self._journal.stream and self._finished(stream, path, old):
                self._spools.drop(stream)
                path.unlink(missing_ok=True)
        assigned = {(each.run, each.generation) for each in self._assignments}
        attempts: dict[tuple[str, int], list[RankRecord]] = {}
        for record in self._launcher.known():
            attempts.setdefault((record.run, record.generation), []).append(record)
        for key, records in attempts.items():
            done = all(
                record.reported and self._finished(record.stream, self._launcher.spool(record), old)
                for record in records
            )
            if done and key not in assigned:
                self._remove_attempt(key, records)
        leftovers.remove_old_logs(self._folder / "attempts", time.time())

    def _busy_runs(self) -> set[str]:
        living = (record.run for record in self._launcher.known() if record.exited_at is None)
        return {*living, *(each.run for each in self._assignments)}

    def _finished(self, stream: str, path: Path, before: float) -> bool:
        return self._spools.settled(stream) and leftovers.changed_at(path) < before

    def _remove_attempt(self, key: tuple[str, int], records: list[RankRecord]) -> None:
        """Forget an attempt, and remove all of it but its logs."""
        for record in records:
            self._spools.drop(record.stream)
            self._shown.discard(record.key)
            self._stepping.discard(record.stream)
        self._launcher.forget(*key)
        leftovers.remove_all_but_logs(self._settings.home.attempt(self._settings.node, *key))

    def _farewell(self) -> None:
        """End what runs, and try for a while to tell how it ended."""
        self._launcher.end()
        deadline = time.monotonic() + FAREWELL_S
        while time.monotonic() < deadline:
            self._assignments = []
            self.turn(time.monotonic())
            if self._exchange.troubled or not (self._news or self._spools.pending()):
                break
            self._wait()
        self._nest.end()
        self._memory.clear()
        self._settings.home.forget_process(self._settings.nest_name)
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._work.shutdown(wait=False, cancel_futures=True)
        self._jobs.end()
        self._long.shutdown(wait=False, cancel_futures=True)
        self._watching.shutdown(wait=False, cancel_futures=True)
        self._journal.close()


def _levels(running: Iterable[Any]) -> list[Any]:
    return [(each.run, each.generation, each.store, each.ranks) for each in running]


def _reported_exits(events: Iterable[dict[str, Any]]) -> Iterable[RankKey]:
    for event in events:
        if event["kind"] == "rank_exited":
            data = event["data"]
            yield data["run"], data["generation"], data["rank"]
