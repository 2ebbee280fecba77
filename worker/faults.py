"""Drills: faults that a rank inflicts on itself on purpose, so that recovery can be tried before it
is needed.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from trainmaster.checkpoint.manifest import Manifest
from trainmaster.emulation import Failure
from trainmaster.orders import NUMERIC_FAULTS, Drill
from worker.emulation import Pace
from worker.orders import InboxFile
from worker.reporting.spoolfile import SpoolFile

SPIKE_FACTOR: Final = 1e4
"""By how much the drill `spike` enlarges a rank's gradients."""


class Faults:
    """The drills of this generation that concern one rank. Each fires once per step, and a numeric
    one once per batch.
    """

    def __init__(
        self,
        inbox: InboxFile,
        spool: SpoolFile,
        pace: Pace,
        *,
        rank: int,
        node: str,
        failure: Failure | None = None,
    ) -> None:
        """Args:
        failure: of the emulated device in this generation.
        """
        self._inbox = inbox
        self._spool = spool
        self._pace = pace
        self._failure = failure
        self._rank = rank
        self._node = node
        self._first_steps: dict[int, int] = {}
        self._done: set[int] = set()

    def before_step(self, step: int, batch: int) -> float:
        """Suffer what is due at the beginning of `step`; return the factor that its gradients are
        to be poisoned with (1: none).
        """
        if self._failure is not None and step == self._failure.at_step:
            self._spool.event("device_failed", step=step, how=self._failure.how)
            _end(self._failure.how)
        factor = 1.0
        for drill in self._concerning():
            first = self._first_steps.setdefault(drill.id, drill.at_step or step)
            if drill.fault in NUMERIC_FAULTS:
                if poisons(drill, first, step, batch):
                    self._spool.event(
                        "drill_fired", id=drill.id, fault=drill.fault, step=step, batch=batch
                    )
                    factor *= math.nan if drill.fault == "nan" else SPIKE_FACTOR
            elif (
                step >= first
                and drill.id not in self._done
                and drill.fault in {"kill", "hang", "slow"}
            ):
                self._done.add(drill.id)
                self._spool.event(
                    "drill_fired", id=drill.id, fault=drill.fault, step=step, batch=batch
                )
                self._suffer(drill)
        return factor

    def after_commit(self, step: int, location: str, manifest: Manifest) -> None:
        """Damage the checkpoint that was just committed, when a drill asks for it (rank 0)."""
        for drill in self._concerning():
            if (
                drill.fault == "corrupt"
                and drill.id not in self._done
                and step >= (drill.at_step or 0)
            ):
                self._done.add(drill.id)
                file = flip_bit(location, manifest)
                self._spool.event(
                    "drill_fired", id=drill.id, fault=drill.fault, step=step, file=file
                )

    def _concerning(self) -> Sequence[Drill]:
        return [
            drill for drill in self._inbox.look().drills if concerns(drill, self._rank, self._node)
        ]

    def _suffer(self, drill: Drill) -> None:
        if drill.fault in {"kill", "hang"}:
            _end(drill.fault)
        else:
            self._pace.slow_until = time.monotonic() + drill.duration_s


def failure_in(failure: Failure | None, generation: int) -> Failure | None:
    """Return what an emulated device suffers in `generation`: it is repaired at last."""
    return failure if failure is not None and generation <= failure.generations else None


def _end(how: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)


def concerns(drill: Drill, rank: int, node: str) -> bool:
    """Return whether `drill` is for this rank: the one it names, all of the node it names, or else
    rank 0.
    """
    if drill.fault == "corrupt":
        return rank == 0
    if drill.rank is not None:
        return drill.rank == rank
    return drill.node == node if drill.node is not None else rank == 0


def poisons(drill: Drill, first_step: int, step: int, batch: int) -> bool:
    """Return whether a numeric drill that began at `first_step` poisons this step.

    Once its batches are known (a later generation of a sticky drill), they alone decide.
    """
    if drill.batches:
        return any(first <= batch <= last for first, last in drill.batches)
    return first_step <= step < first_step + drill.steps


def flip_bit(location: str, manifest: Manifest) -> str:
    """Flip one bit in the middle of the largest file of a checkpoint in a folder; return the file's
    name.
    """
    name = max(manifest.files, key=lambda file: (manifest.files[file].bytes, file))
    path = Path(unquote(urlsplit(location).path)) / name
    with path.open("r+b") as file:
        file.seek(manifest.files[name].bytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return name
