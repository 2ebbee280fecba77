"""Real ranks over Gloo on this machine: forked as the nest forks them, watched through their
spools.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster.layout import nodes_of
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.orders import Drill, Order
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from trainmaster.spool import Frames, decode
from trainmaster.wire import Assignment, RankAssignment, Resume
from worker.launch import Emulation, Inbox, Launch, SlotDevice

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["worker.train"])
A_HANG_S = 300.0  # far beyond what ranks need on a busy machine, and before pytest's own limit
TINY = {"layers": 4, "width": 32, "heads": 2, "context": 32}


def tiny_spec(corpus: Path, **train: Any) -> RunSpec:
    """A model of four small layers on some text."""
    optimizer = {"lr": 3e-3, "grad_clip": 1.0, "warmup_steps": 2}
    return RunSpec.model_validate(
        {
            "name": "tiny",
            "workload": "worker.workloads.byte_gpt:workload",
            "params": TINY,
            "data": {"source": f"text:{corpus}"},
            "train": {"steps": 4, "global_batch": 16, "seed": 7, "optimizer": optimizer, **train},
        }
    )


def plan_of(spec: RunSpec, **ask: Any) -> Plan:
    """The plan for a `parallel` section, with micro-batches of two samples."""
    parallel = ParallelAsk.model_validate({"micro_batch": 2, **ask})
    layers = int(spec.params["layers"])
    return resolve(parallel, num_layers=layers, global_batch=spec.train.global_batch)


@dataclass
class Generation:
    """The ranks of one generation: started together, ended by themselves."""

    folder: Path
    processes: list[multiprocessing.process.BaseProcess] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    drills: list[Drill] = field(default_factory=list)

    def join(self, *, within_s: float = A_HANG_S) -> list[int | None]:
        """Wait for all ranks; return their exit codes."""
        deadline = time.monotonic() + within_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        assert None not in codes, f"ranks still run after {within_s} s: {codes}"
        return codes

    def tell(self, *orders: Order, drills: Sequence[Drill] = ()) -> None:
        """Put orders and drills into the inbox, as the agent does."""
        self.orders.extend(orders)
        self.drills.extend(drills)
        inbox = Inbox(orders=self.orders, drills=self.drills)
        draft = self.folder / "inbox.json.new"
        draft.write_text(inbox.model_dump_json())
        draft.replace(self.folder / "inbox.json")

    def frames(self, rank: int = 0) -> Frames:
        path = self.folder / f"rank-{rank}.spool"
        return decode(path.read_bytes() if path.exists() else b"", offset=0, header=None)

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """The data of all events of a kind."""
        found = [event for event in self.frames(rank).events if event["kind"] == kind]
        return [dict(event["data"]) for event in found]  # type: ignore[call-overload]

    def rows(self, rank: int = 0) -> dict[int, dict[str, float]]:
        """Sample rows by step."""
        rows = self.frames(rank).rows
        return {step: dict(zip(STEP_METRIC_NAMES, values, strict=True)) for step, _, values in rows}

    def series(self, metric: str, rank: int = 0) -> list[float]:
        return [row[metric] for row in self.rows(rank).values()]

    def weights_sha256(self) -> str:
        [finished] = self.events("rank_finished")
        return str(finished["weights_sha256"])

    def newest(self) -> Resume:
        """The newest committed checkpoint, as the control plane would name it."""
        return self._resume(self.events("checkpoint_committed")[-1])

    def checkpoint(self, step: int) -> Resume:
        """The checkpoint that was committed after `step`."""
        [event] = [each for each in self.events("checkpoint_committed") if each["step"] == step]
        return self._resume(event)

    def _resume(self, event: dict[str, Any]) -> Resume:
        names = ("checkpoint", "step", "location", "manifest_sha256")
        return Resume.model_validate({name: event[name] for name in names})

    def wait_for(self, look: Callable[[], object], *, within_s: float = 30) -> None:
        deadline = time.monotonic() + within_s
        while not look():
            assert time.monotonic() < deadline, f"not within {within_s} s"
            time.sleep(0.02)


@contextmanager
def started(
    folder: Path,
    spec: RunSpec,
    plan: Plan,
    *,
    generation: int = 1,
    resume: Resume | None = None,
    checkpoint_every: int = 1000,
    orders: Sequence[Order] = (),
    drills: Sequence[Drill] = (),
    emulation: Mapping[int, Emulation] | None = None,
    devices: Sequence[SlotDevice] = (),
    memory: bool = False,
    **assignment: Any,
) -> Iterator[Generation]:
    """Start one generation's ranks; whatever still runs at the end is killed.

    Args:
        memory: give them a folder in memory: below `folder`, one per node.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    home = folder / f"g{generation}"
    home.mkdir(parents=True)
    told = Generation(home)
    told.tell(*orders, drills=drills)
    shared = Assignment(
        run="r1",
        generation=generation,
        world_size=plan.world_size,
        hosts_store=True,
        store=f"127.0.0.1:{store.port}",
        ranks=[RankAssignment(rank=rank, slot=rank) for rank in range(plan.world_size)],
        spec=spec,
        plan=plan,
        resume=resume,
        checkpoint_every=checkpoint_every,
        checkpoint_root=(folder / "checkpoints").as_uri(),
        **assignment,
    )
    for rank in range(plan.world_size):
        launch = Launch(
            assignment=shared,
            rank=rank,
            node="here",
            spool=home / f"rank-{rank}.spool",
            inbox=home / "inbox.json",
            memory=_memory(folder, plan, rank) if memory else None,
            emulation=(emulation or {}).get(rank, Emulation()),
            device=devices[rank] if devices else SlotDevice(),
        )
        process = FORKS.Process(
            target=_run, args=(launch.model_dump_json(), str(home / f"rank-{rank}.log"))
        )
        process.start()
        told.processes.append(process)
    try:
        yield told
    finally:
        for process in told.processes:
            if process.exitcode is None:
                process.kill()
            process.join()


def trained(folder: Path, spec: RunSpec, plan: Plan, **options: Any) -> Generation:
    """Train one generation to its end."""
    with started(folder, spec, plan, **options) as generation:
        codes = generation.join()
    failures = [generation.events("rank_failed", rank) for rank in range(plan.world_size)]
    assert codes == [0] * plan.world_size, (codes, json.dumps(failures)[:6000])
    return generation


def _memory(folder: Path, plan: Plan, rank: int) -> Path:
    memory = folder / "memory" / (nodes_of(plan)[rank] or "here")
    memory.mkdir(parents=True, exist_ok=True)
    return memory


def _run(launch: str, log: str) -> None:
    from worker import train

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os._exit(train.main(Launch.model_validate_json(launch)))
