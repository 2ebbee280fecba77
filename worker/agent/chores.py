"""Work for an agent that is not training. Results go to the journal as `chore_done`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

from trainmaster.errors import TrainmasterError
from trainmaster.wire import Chore
from worker.agent.jobs import LONG, Jobs
from worker.agent.links import with_links
from worker.agent.nest_process import NestProcess
from worker.launch import Emulation, SlotDevice
from worker.nest.messages import Calibrate, Describe, Description, Exited, Fact, Said

LIMIT_S = 120
"""For a child of the nest."""
LOG_TAIL_CHARS = 2000
_NAME = "chore:"


class Chores:
    """Does each listed chore once, and again only if it is still listed after being forgotten.

    Args:
        jobs: what is done in threads.
        executor: runs what waits for disks; one thread is enough.
        long: runs what goes no faster than asked.
        link_token: asks for a token with which neighbours take messages.
        tell: takes an event's kind and data for the journal.
        wake: called from the executor's thread when a chore is done.
    """

    def __init__(
        self,
        *,
        nest: NestProcess,
        device: SlotDevice,
        emulation: Emulation,
        log: Path,
        jobs: Jobs,
        executor: Executor,
        long: Executor,
        link_token: Callable[[], str],
        tell: Callable[[str, dict[str, Any]], None],
        wake: Callable[[], None],
    ) -> None:
        self._nest = nest
        self._device = device
        self._emulation = emulation
        self._log = log
        self._jobs = jobs
        self._executor = executor
        self._long = long
        self._link_token = link_token
        self._tell = tell
        self._wake = wake
        self._begun: dict[int, Chore] = {}
        """What children of the nest do."""
        self._words: dict[int, str] = {}
        self._futures: dict[int, Future[dict[str, Any]]] = {}
        self._done: set[int] = set()

    def offer(self, listed: Iterable[Chore]) -> None:
        """Begin those of `listed` that are neither begun nor done."""
        chores = {chore.id: chore for chore in listed}
        self._done &= set(chores)  # the control plane knows the others by now
        for number, chore in chores.items():
            if number not in self._done | self._begun.keys() | self._futures.keys():
                self._begin(chore)

    def hear(self, fact: Fact) -> None:
        """Take what the nest says of a child that does a chore."""
        if not isinstance(fact, Said | Exited) or not fact.name.startswith(_NAME):
            return
        number = int(fact.name.removeprefix(_NAME))
        if isinstance(fact, Said):
            self._words[number] = fact.text
        elif (chore := self._begun.pop(number, None)) is not None:
            self._heard_out(chore, self._words.pop(number, ""), fact)

    def nest_ended(self) -> None:
        """Forget the chores that died with their nest; they are begun again when listed."""
        self._begun.clear()
        self._words.clear()

    def poll(self) -> None:
        """Tell of what has been finished in the executor."""
        for number in [number for number, future in self._futures.items() if future.done()]:
            future = self._futures.pop(number)
            error = future.exception()
            if error is None:
                self._conclude(number, ok=True, result=future.result())
            else:
                known = error if isinstance(error, TrainmasterError) else None
                self._conclude(
                    number,
                    ok=False,
                    because=known.message if known else f"{type(error).__name__}: {error}",
                    code=known.code if known else "failed",
                    retryable=known is not None and known.retryable,
                )

    def _begin(self, chore: Chore) -> None:
        args = chore.args
        if chore.kind in {"describe", "calibrate"}:
            if self._nest.send(self._request(chore)):
                self._begun[chore.id] = chore
            return
        job = self._jobs.of(chore.kind)
        if job is None:
            because = f"this agent knows no chore {chore.kind!r}: upgrade it"
            self._conclude(
                chore.id, ok=False, because=because, code="unknown_chore", retryable=True
            )
            return
        executor = self._long if chore.kind in LONG else self._executor
        self._submit(chore.id, executor, partial(job, args))

    def _request(self, chore: Chore) -> Describe | Calibrate:
        name, args = f"{_NAME}{chore.id}", chore.args
        if chore.kind == "calibrate":
            return Calibrate(
                name=name,
                device=self._device,
                emulation=self._emulation,
                workload=args.get("workload", ""),
                params=args.get("params", {}),
                data=args.get("data", "workload"),
                limit_s=LIMIT_S,
                log=self._log,
            )
        return Describe(
            name=name,
            workload=args["workload"],
            params=args.get("params", {}),
            data=args.get("data", "workload"),
            limit_s=LIMIT_S,
            log=self._log,
        )

    def _submit(self, number: int, executor: Executor, work: Callable[[], dict[str, Any]]) -> None:
        self._futures[number] = executor.submit(work)
        self._futures[number].add_done_callback(lambda _: self._wake())

    def _heard_out(self, chore: Chore, said: str, end: Exited) -> None:
        if said:
            description = Description.model_validate_json(said)
            if description.result is None:
                self._conclude(chore.id, ok=False, problems=description.problems)
            elif chore.kind == "calibrate":
                # The links come after the device: each alone.
                measure = partial(
                    with_links,
                    description.result,
                    chore.args.get("peers", {}),
                    self._emulation,
                    token=self._link_token,
                )
                self._submit(chore.id, self._long, measure)
            else:
                self._conclude(chore.id, ok=True, result=description.result)
            return
        because = ended_early(chore, end, self._log)
        self._conclude(chore.id, ok=False, because=because, log_tail=log_tail(self._log))

    def _conclude(self, number: int, **data: Any) -> None:
        self._done.add(number)
        self._tell("chore_done", {"id": number, **data})


def ended_early(chore: Chore, end: Exited, log: Path) -> str:
    """Return why a child that was to look at a workload or a device said nothing, and where to
    look.
    """
    of = chore.args.get("workload")
    if chore.kind == "describe":
        doing = f"describing the workload {of}"
    else:
        doing = f"measuring the device{f' and the layers of {of}' if of else ''}"
    how = f"ended with exit code {end.exit_code}"
    if end.signal == signal.SIGALRM:
        how = f"took longer than {LIMIT_S} s and was ended"
    elif end.signal is not None:
        how = f"ended by signal {end.signal}"
    mend = (
        "; calibrate without a spec measures the device alone" if of and "device" in doing else ""
    )
    return f"{doing} {how}: what it printed is in {log} on the node{mend}"


def log_tail(path: Path) -> str:
    """Return the last lines of a log, "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_CHARS))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
