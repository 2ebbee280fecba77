"""Tries the default pack on every curve, log and trace that lies beside the project, and writes the
table of docs/campaigns/backtest.md.

    python -m tests.campaigns.try_rules [--write]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests import real_curves as real

PAGE = Path(__file__).parents[2] / "docs" / "campaigns" / "backtest.md"
MADE_UP_NOISE = 0.05

KNOWN = {
    "healthy_with_one_bad_batch_step200.csv": "one bad batch at 200, healthy",
    "nan_sgd_lr5_from_start.csv": "norm NaN from 5, loss NaN from 6",
    "nan_weight_at_step_150.csv": "NaN from 150",
    "nodiverge_lr_jump_x100_from200.csv": "a jump of the learning rate at 200 that healed",
    "spike_15_bad_batches_step200_214.csv": "15 bad batches from 200, then healed",
    "tr1-13B 29020": "a spike at 29050; healed after about 500 iterations",
    "tr8-104B 7000": "diverged at 7010: one row of it, 200 iterations before the next",
    "tr8-104B 6900": "diverged, 6930",
    "tr8-104B 11446": "norm x 20 at 11447, loss doubled at 11448; healed",
    "tr8-104B 8738": "norm x 6 at 8740, loss doubled at 8741; diverged",
    "tr8-104B 9026": "loss absent and norm repeated at 9027",
    "tr8b-104B 17060": "loss 2.67 to 4.40 at 17062, norm frozen; diverged",
    "tr11-176B 42780": "5 % slower from 42783: two rows of it",
    "job 1": "worker 6 straggles from 1811",
    "job 2": "workers differ from start to end; no straggler",
}


def main(write: bool) -> int:
    """Print the table, or write its page; return the exit status."""
    if not real.DATA.is_dir():
        print(f"there are no curves in {real.DATA}", file=sys.stderr)
        return 1
    text = "".join(page())
    if write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def page() -> Iterator[str]:
    """Yield the page, piece by piece."""
    yield (
        "# The default pack on real curves\n\n"
        "Written by `python -m tests.campaigns.try_rules --write`, from curves, logs and traces "
        "that are not part of this\nproject (sources are named by file). The same code judges "
        "live runs. Excerpts of logs have a made-up quiet prefix of "
        f"{real.QUIET_STEPS}\nsteps around their first row, with {MADE_UP_NOISE:.0%} noise on the "
        "gradient norm and 2 % on the loss. Held by `tests/unit/control/test_real_curves.py`.\n"
    )
    healthy = [(path.name, real.tried_file(path)) for path in real.files(*real.HEALTHY)]
    steps = sum(found["steps"] for _, found in healthy)
    findings = sum(len(found["findings"]) for _, found in healthy)
    destructive = sum(found["destructive"] for _, found in healthy)
    yield (
        f"\n## Healthy\n\n{steps:,} steps: {findings} findings "
        f"({findings * 10_000 / steps:.2g} per 10,000 steps), {destructive} destructive.\n\n"
    )
    yield from table(healthy)
    yield "\n## Sick\n\n"
    yield from table((path.name, real.tried_file(path)) for path in real.files(*real.SICK))
    yield "\n## BigScience logs\n\n"
    yield from table(
        (f"{each.run} {each.rows[0][0]}", each.tried(MADE_UP_NOISE))
        for each in real.episodes()
        if len(each.rows) > 1 and each.rows[0][2] and "prequel" not in each.run
    )
    yield "\n## Traces of workers\n\n"
    yield from table(
        (f"job {job}", real.tried(f"job {job}", real.stragglers(job))) for job in (1, 2)
    )


def table(found: Iterable[tuple[str, real.Found]]) -> Iterator[str]:
    """Yield one row per finding, or one that says that there is none."""
    yield "| source | steps | what is known | rule | first bad | fired | over | action |\n"
    yield "|---|---|---|---|---|---|---|---|\n"
    for name, told in found:
        head = f"| {name} | {told['steps']} | {KNOWN.get(name, 'healthy')} |"
        for each in told["findings"]:
            scope = "" if each["scope"] == "run" else f" ({each['scope']})"
            over = each["resolved_step"] if each["resolved_step"] is not None else "-"
            yield (
                f"{head} {each['rule']}{scope} | {each['first_bad_step']} | "
                f"{each['fired_step']} | {over} | {each['action'] or 'warns'} |\n"
            )
            head = "| | | |"
        if not told["findings"]:
            yield f"{head} none | | | | |\n"


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
