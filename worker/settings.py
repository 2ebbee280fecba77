"""What a rank takes from its environment: the only reader of it on this side of the nest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RankSettings:
    """Settings of one training process.

    Attributes:
        num_threads: intra-operation threads; fixed for the life of a run, since sums depend on it.
        cache_folder: where tokenised corpora are kept between runs.
    """

    num_threads: int
    cache_folder: Path


def read() -> RankSettings:
    """Read `OMP_NUM_THREADS` (default 1) and `TRAINMASTER_CACHE` (default ~/.cache/trainmaster)."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    cache = os.environ.get("TRAINMASTER_CACHE")
    return RankSettings(
        num_threads=int(threads) if threads.isdecimal() and int(threads) > 0 else 1,
        cache_folder=Path(cache) if cache else Path.home() / ".cache" / "trainmaster",
    )
