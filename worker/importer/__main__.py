"""`python -m worker.importer SOURCE FOLDER --run RUN`: converts one torch checkpoint.

Its last line on stdout is JSON: what was written, or why nothing was.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trainmaster.errors import TrainmasterError
from worker.importer.conversion import convert

SPARE_BYTES: Final = 12 << 30
"""Address space for torch itself; four times the source's size comes on top of it."""


def main(words: Sequence[str] | None = None) -> int:
    """Convert, and tell how it went; exit status 0 or 2."""
    parser = argparse.ArgumentParser(prog="python -m worker.importer", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", required=True)
    parser.add_argument("--rename", action="append", default=[], metavar="PATTERN=NAME")
    asked = parser.parse_args(words)
    try:
        _limit_memory(asked.source)
        told: dict[str, Any] = convert(asked.source, asked.folder, asked.run, asked.rename)
    except TrainmasterError as error:
        told = {"error": error.message}
    except MemoryError:
        told = {"error": "it needs more memory than its size lets expect"}
    except OSError as error:
        told = {"error": f"it cannot be read: {error}"}
    sys.stdout.write(json.dumps(told) + "\n")
    return 2 if "error" in told else 0


def _limit_memory(source: Path) -> None:
    files = [each for each in source.rglob("*") if each.is_file()] if source.is_dir() else [source]
    size = sum(each.stat().st_size for each in files)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = SPARE_BYTES + 4 * size
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    sys.exit(main())
