"""The bench of ingest, small: whatever changes below it, it can still be run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_bench_counts_every_point_and_writes_its_tables(tmp_path: Path) -> None:
    few = ("--nodes", "1", "--steps", "600", "--seconds", "0.1", "--repetitions", "1")
    where = ("--database", "sqlite", "--out", str(tmp_path))
    # The peer is driven by a Python in which nothing is installed.
    peer = ("--peers", "wandb", "--peer-python", _bare_python(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "bench.ingest", *few, *where, *peer],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "ingest.json").read_text())
    passage = told["databases"]["sqlite"]["passages"]["1"]
    assert passage["points"] == 600 * told["metrics"]
    assert passage["bytes_per_point"]["median"] < 12
    assert "wandb not installed" in told["peers"]["wandb"]["absent"]
    assert "### From spool to queryable SQL" in (tmp_path / "ingest.md").read_text()


def _bare_python(folder: Path) -> str:
    """A Python of the same version that finds the standard library and the checkout alone."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)
