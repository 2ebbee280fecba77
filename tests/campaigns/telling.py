"""The command line of campaigns that tell stories: which of them, and whether what was seen goes
into the documentation.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "campaigns"
WORDS = ("the", "slow", "node", "waits", "for", "its", "peer", "and", "says", "why")

Json = dict[str, Any]
Story = Callable[[Path, Path], Json]
"""From an empty folder and a corpus to what was seen; what was not as it should be stands under
`wrong`.
"""


def tell(prog: str, stories: Mapping[str, Story], keep: Callable[[str, Json], None]) -> int:
    """Tell the stories that the command line names and print what was seen; return 1 where
    something was wrong.

    Args:
        keep: writes one story down, where the command line says so.
    """
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--only", nargs="+", choices=[*stories], default=[*stories])
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and take down what is up
    wrong = 0
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="tm-story-") as made:
            corpus = Path(made) / "corpus.txt"
            corpus.write_text(" ".join(random.Random(0).choices(WORDS, k=40_000)), encoding="utf-8")
            try:
                told = stories[name](Path(made), corpus)
            except (AssertionError, subprocess.SubprocessError) as error:
                wrong += 1
                traceback.print_exc()
                print(f"{name}: WRONG: the story came to no end: {error}", flush=True)
                continue
        wrong += len(told["wrong"])
        print(json.dumps({name: told}, indent=1), flush=True)
        if asked.write:
            keep(name, told)
    print("nothing is wrong" if not wrong else f"{wrong} things are wrong")
    return int(wrong > 0)
