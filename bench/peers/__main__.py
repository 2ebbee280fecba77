"""`python -m bench.peers NAME`: what one peer takes, as JSON; `{"absent": ...}` where it is not
installed. Standard library only, but for the peer itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

from bench.conditions import version_of
from bench.measured import NAMES, steps
from bench.pace import flat_out, paced
from bench.peers import Peer, bytes_below

PEERS = ("tensorboard", "mlflow", "trackio", "aim", "wandb")
PREPARED = 1000
ALONE = "loss_alone"
"""A metric of which the series that is read consists."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--points", type=int, default=100_000, help="of the series that is read")
    given = parser.parse_args()
    # So that an end from outside also ends what a peer has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # What peers print is not the answer.
    with redirect_stdout(sys.stderr):
        told = _measure(given.peer, given.seconds, given.points)
    sys.stdout.write("\n" + json.dumps(told) + "\n")


def _measure(name: str, seconds: float, points: int) -> dict[str, Any]:
    module = importlib.import_module(f"bench.peers.{name}")
    absent = [package for package in module.PACKAGES if version_of(package) is None]
    if absent:
        return {"absent": f"{', '.join(absent)} not installed for {sys.executable}"}
    told: dict[str, Any] = {
        "versions": {package: version_of(package) for package in module.PACKAGES}
    }
    prepared = list(islice(steps(), PREPARED))

    def logging_with(peer: Peer) -> Callable[[int], None]:
        return lambda step: peer.log(step, prepared[step % PREPARED])

    with _made(module.make) as (peer, folder):
        empty_bytes = bytes_below(folder)
        durations, taken = flat_out(logging_with(peer), seconds=seconds)
        began = time.perf_counter()
        peer.finish()
        taken += time.perf_counter() - began
        points_told = durations.calls * len(NAMES)
        told["flat_out"] = durations.json()
        told["points_per_s"] = points_told / taken
        told["bytes_per_point"] = (bytes_below(folder) - empty_bytes) / points_told
    with _made(module.make) as (peer, _):
        for life, computes in (("computing", True), ("idle", False)):
            told[life] = paced(logging_with(peer), seconds=seconds, computes=computes).json()
        peer.log_series(ALONE, [values["loss"] for values in islice(steps(), points)])
        peer.finish()
        began = time.perf_counter()
        found = peer.read(ALONE)
        told["read_ms"] = None if found is None else 1e3 * (time.perf_counter() - began)
        if found not in {None, points}:
            raise RuntimeError(f"{name}: {found} points read of {points}")
    return told


@contextmanager
def _made(make: Callable[[Path], Peer]) -> Iterator[tuple[Peer, Path]]:
    with tempfile.TemporaryDirectory(prefix="tm-peer-", ignore_cleanup_errors=True) as folder:
        peer = make(Path(folder))
        try:
            yield peer, Path(folder)
        finally:
            peer.close()


if __name__ == "__main__":
    main()
