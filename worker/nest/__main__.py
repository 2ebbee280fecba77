"""`python -m worker.nest`: the process that forks ranks. Started by the agent, ends with it."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from trainmaster.errors import SpecError, UserError
from trainmaster.home import identity
from worker import host_memory
from worker.launch import Launch
from worker.nest.forking import die_with_parent, fork, print_what_fits
from worker.nest.messages import (
    Calibrate,
    Describe,
    Description,
    Exited,
    Fact,
    Forked,
    HostStore,
    Ready,
    Request,
    Said,
    StartRank,
    encode,
    parse_request,
)

_READ_BYTES = 1 << 16


@dataclass(slots=True)
class _Child:
    """A living child and, until it has said all, the pipe on which it speaks."""

    name: str
    ear: int | None = None
    heard: bytes = b""


class Nest:
    """Forks on request, reaps at once, and tells the agent. Everything happens in one thread."""

    def __init__(self, requests: int, facts: int, *, train: str, describe: str) -> None:
        self._requests = requests
        self._facts = facts
        self._train = train
        self._describe = describe
        self._children: dict[int, _Child] = {}
        self._line = b""
        self._inherited: tuple[int, ...] = (requests, facts)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Import what ranks need, then serve until the agent hangs up."""
        wake, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(bell)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        began = time.monotonic()
        importlib.import_module(self._train)
        gc.collect()
        gc.freeze()  # the children share these pages for as long as nobody touches them
        self._tell(Ready(import_s=time.monotonic() - began))
        self._inherited += (wake, bell)
        self._selector.register(wake, selectors.EVENT_READ, lambda: self._reap(wake))
        self._selector.register(self._requests, selectors.EVENT_READ, self._hear_agent)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _hear_agent(self) -> None:
        data = os.read(self._requests, _READ_BYTES)
        if not data:
            sys.exit(0)
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._grant(parse_request(line))

    def _grant(self, request: Request) -> None:
        match request:
            case StartRank():
                self._fork(request.name, lambda _: self._rank(request), request, talks=False)
            case HostStore():
                self._fork(request.name, _host_store, request, talks=True)
            case Describe():
                self._fork(
                    request.name, lambda mouth: self._look(request, mouth), request, talks=True
                )
            case Calibrate():
                self._fork(
                    request.name, lambda mouth: _measure(request, mouth), request, talks=True
                )

    def _fork(
        self, name: str, body: Callable[[int], int], request: Request, *, talks: bool
    ) -> None:
        ear, mouth = os.pipe2(os.O_CLOEXEC) if talks else (None, -1)
        open_ears = [child.ear for child in self._children.values() if child.ear is not None]
        close = [*self._inherited, *open_ears, self._selector.fileno()]
        if ear is not None:
            close.append(ear)
        pid = fork(lambda: body(mouth), log=request.log, close=close)
        self._children[pid] = _Child(name, ear)
        if ear is not None:
            os.close(mouth)
            os.set_blocking(ear, False)
            self._selector.register(ear, selectors.EVENT_READ, lambda: self._listen(pid))
        self._tell(Forked(name=name, pid=pid, started=identity(pid) or ""))

    def _rank(self, request: StartRank) -> int:
        launch = Launch.model_validate_json(request.launch.read_bytes())
        return int(importlib.import_module(self._train).main(launch))

    def _look(self, request: Describe, mouth: int) -> int:
        signal.alarm(request.limit_s)
        host_memory.leave_the_reserve()
        describe = importlib.import_module(self._describe).describe
        try:
            info = describe(request.workload, request.params, request.data)
            said = Description(result=info.model_dump(mode="json"))
        except SpecError as error:
            said = Description(problems=[asdict(problem) for problem in error.problems])
        return _say(said, mouth)

    def _listen(self, pid: int) -> None:
        """Take what a child says; tell the agent once it has said all."""
        child = self._children[pid]
        assert child.ear is not None
        try:
            data = os.read(child.ear, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            child.heard += data
            return
        self._hang_up(child)

    def _hang_up(self, child: _Child) -> None:
        assert child.ear is not None
        self._selector.unregister(child.ear)
        os.close(child.ear)
        child.ear = None
        self._tell(Said(name=child.name, text=child.heard.decode()))

    def _reap(self, wake: int) -> None:
        os.read(wake, _READ_BYTES)
        while self._children:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None:
                return
            # Before it is reaped the number of its group cannot be another's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(seen.si_pid, signal.SIGKILL)
            _, status = os.waitpid(seen.si_pid, 0)
            child = self._children[seen.si_pid]
            while child.ear is not None and self._has_more(child):
                self._listen(seen.si_pid)
            if child.ear is not None:
                self._hang_up(child)
            del self._children[seen.si_pid]
            code = os.waitstatus_to_exitcode(status)
            self._tell(
                Exited(
                    name=child.name,
                    exit_code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                )
            )

    def _has_more(self, child: _Child) -> bool:
        assert child.ear is not None
        ready = selectors.PollSelector()
        ready.register(child.ear, selectors.EVENT_READ)
        return bool(ready.select(0))

    def _tell(self, fact: Fact) -> None:
        data = encode(fact)
        while data:
            data = data[os.write(self._facts, data) :]


def _measure(request: Calibrate, mouth: int) -> int:
    signal.alarm(request.limit_s)
    calibrate = importlib.import_module("worker.calibration").calibrate
    try:
        found = calibrate(request.device, request.emulation)
        if request.workload:
            measured = importlib.import_module("worker.layer_times").measured
            figures = measured(
                request.workload,
                request.params,
                request.data,
                request.device,
                request.emulation,
            )
            found = found.model_copy(update={"workloads": figures})
        said = Description(result=found.model_dump(mode="json"))
    except SpecError as error:
        problems = [{"path": each.path, "message": each.message} for each in error.problems]
        said = Description(problems=problems)
    except UserError as error:
        said = Description(problems=[{"path": "", "message": error.message}])
    return _say(said, mouth)


def _say(said: Description, mouth: int) -> int:
    with os.fdopen(mouth, "wb") as file:
        file.write(said.encoded())
    return 0


def _host_store(mouth: int) -> int:
    # Here, so that the agent and tests may import this module without torch.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(mouth, json.dumps(store.port).encode())
    os.close(mouth)
    while True:
        signal.pause()


def main() -> None:
    """Serve the agent that started this process."""
    parser = argparse.ArgumentParser(prog="python -m worker.nest", description=__doc__)
    parser.add_argument("--agent", type=int, required=True, help="pid of the agent")
    parser.add_argument("--train", default="worker.train", help="module whose main() is a rank")
    parser.add_argument("--describe", default="worker.describe", help="module with describe()")
    options = parser.parse_args()
    die_with_parent(options.agent)
    if sys.flags.safe_path:
        # A user's workload may lie where the agent was started, but shadows nothing of ours.
        sys.path.append(str(Path.cwd()))
    facts = os.dup(1)
    os.set_inheritable(facts, False)
    os.dup2(2, 1)  # what an imported module prints is no message
    print_what_fits()
    Nest(0, facts, train=options.train, describe=options.describe).serve()


if __name__ == "__main__":
    main()
