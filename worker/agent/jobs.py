"""What an agent does to checkpoints when it is asked: verify, compare, retire, copy, list. Each job
takes a chore's arguments and returns its result, in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.checkpoint.stores import open_storage, verify_location, weights_at
from trainmaster.ids import parse_checkpoint_folder
from worker.checkpoint.copying import copy_checkpoint
from worker.checkpoint.pace import Pace
from worker.checkpoint.retire import retire

Args = Mapping[str, Any]
Job = Callable[[Args], dict[str, Any]]

LONG: Final = frozenset({"copy", "scrub"})
"""Kinds that may take hours, since they go no faster than asked; nothing short waits for them."""


class Jobs:
    """The jobs, by the kind of chore.

    Args:
        copy_bytes_per_s: how fast checkpoints are copied at most; 0: as fast as it goes.
    """

    def __init__(self, *, copy_bytes_per_s: float = 0.0) -> None:
        self._copy_bytes_per_s = copy_bytes_per_s
        self._ends = threading.Event()

    def of(self, kind: str) -> Job | None:
        """Return the job for a kind of chore; None where this agent knows none."""
        jobs: Mapping[str, Job] = {
            "verify": self.verify,
            "compare": self.compare,
            "scrub": self.scrub,
            "retire": self.retire,
            "copy": self.copy,
            "list": self.list,
        }
        return jobs.get(kind)

    def end(self) -> None:
        """Let jobs that wait for their pace go, unfinished."""
        self._ends.set()

    def verify(self, args: Args) -> dict[str, Any]:
        """Read a checkpoint, and tell what is wrong with it."""
        report = verify_location(args["location"], manifest_sha256=args.get("manifest_sha256"))
        return report.model_dump(mode="json")

    def compare(self, args: Args) -> dict[str, Any]:
        """Tell how far the weights of two checkpoints lie apart."""
        # numpy takes longer to load than all else that an agent needs for its start
        from trainmaster.checkpoint.comparison import compare

        first, second = (
            weights_at(args[which], manifest_sha256=args[digest])
            for which, digest in (
                ("location", "manifest_sha256"),
                ("other_location", "other_manifest_sha256"),
            )
        )
        return compare(first, second).model_dump(mode="json")

    def scrub(self, args: Args) -> dict[str, Any]:
        """Read a checkpoint as `verify` does, at a bounded rate."""
        pace = Pace(args["bytes_per_s"], self._ends)
        report = verify_location(
            args["location"], manifest_sha256=args.get("manifest_sha256"), spend=pace.spend
        )
        return report.model_dump(mode="json")

    def retire(self, args: Args) -> dict[str, Any]:
        """Remove a checkpoint's bytes."""
        retire(args["location"])
        return {"location": args["location"]}

    def list(self, args: Args) -> dict[str, Any]:
        """Tell which folders of checkpoints lie in a store, whole or not."""
        storage = open_storage(args["root"])
        folders = []
        for name in storage.folders():
            if parse_checkpoint_folder(name) is None:
                continue
            paths = storage.list(name)
            committed = f"{name}/{MANIFEST_NAME}" in paths
            num_bytes = 0 if committed else sum(storage.size(path) for path in paths)
            folders.append({"name": name, "committed": committed, "bytes": num_bytes})
        return {"root": args["root"], "folders": folders}

    def copy(self, args: Args) -> dict[str, Any]:
        """Copy a checkpoint to another store."""
        copied = copy_checkpoint(
            args["source"],
            args["target"],
            manifest_sha256=args["manifest_sha256"],
            pace=Pace(self._copy_bytes_per_s, self._ends),
        )
        return asdict(copied)
