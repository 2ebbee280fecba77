"""`python -m tests.campaigns.corrupt_checkpoints --trials N`: random damage to a checkpoint that
two ranks saved; none may be restored, and each must be named. Prints a table of what was tried.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from tests.distributed.damages import DAMAGES, outcome_of, save_runs
from tests.distributed.savers import ROWS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument(
        "--rows",
        type=int,
        default=ROWS,
        help="of the largest tensor, a KiB each: with 40000 files have several blocks, written "
        "past the page cache",
    )
    asked = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="corruption-") as made:
        saved = save_runs(Path(made) / "saved", asked.rows)
        for trial in range(asked.trials):
            damage = DAMAGES[trial % len(DAMAGES)]
            root = Path(made) / "trial"
            try:
                outcome = outcome_of(damage, saved, root, asked.seed + trial, asked.rows)
            except Exception:
                traceback.print_exc()
                outcome = "WRONG"
            counts[damage.__name__, outcome] += 1
            shutil.rmtree(root)
    print("| damage | refused, file named | of no effect | wrong |")
    print("|---|---|---|---|")
    for damage in DAMAGES:
        told = [counts[damage.__name__, each] for each in ("refused", "changed nothing", "WRONG")]
        print(f"| {damage.__name__.replace('_', ' ')} | {' | '.join(map(str, told))} |")
    wrong = sum(count for (_, outcome), count in counts.items() if outcome == "WRONG")
    print(f"{asked.trials} corruptions, {wrong} wrong restores or causes without a name")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
