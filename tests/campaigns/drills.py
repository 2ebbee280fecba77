"""`python -m tests.campaigns.drills [--only NAME ...] [--write]`: every kind of fault, live, on a
small run that trains on two replicas of two stages: what noticed it and when, what was done, what
it cost, and how the run ended. Some minutes; the right to mount for `disk-full`.

With `--write` the outcomes go into docs/campaigns/drills.json, each in the place of the one before
under its name, and all that stand there into docs/campaigns/drills.md.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from tests.campaigns.drill_account import Account
from tests.campaigns.drill_stories import STORIES

FOLDER = Path(__file__).parents[2] / "docs" / "campaigns"
KEPT, PAGE = FOLDER / "drills.json", FOLDER / "drills.md"
WORDS = ("the", "slow", "node", "waits", "for", "its", "peer", "and", "says", "why")

Json = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.drills")
    parser.add_argument("--only", nargs="+", choices=[*STORIES], default=[*STORIES])
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and take down what is up
    wrong = 0
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="tm-drill-") as made:
            try:
                told = outcome(name, Path(made)).to_json()
            except (AssertionError, subprocess.SubprocessError):
                wrong += 1
                print(f"{name}: WRONG: the story came to no end", flush=True)
                traceback.print_exc()
                continue
        wrong += len(told["wrong"])
        print(json.dumps({name: told}, indent=1), flush=True)
        if asked.write:
            write(name, told)
    print("nothing is wrong" if not wrong else f"{wrong} things are wrong")
    return int(wrong > 0)


def outcome(name: str, folder: Path) -> Account:
    corpus = folder / "corpus.txt"
    corpus.write_text(" ".join(random.Random(0).choices(WORDS, k=40_000)), encoding="utf-8")
    return STORIES[name](folder / "home", corpus)


def write(name: str, told: Json) -> None:
    """Keep one outcome, in the place of the one before, and write the page of all that are kept."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"drills": {}}
    drills = {**kept["drills"], name: told}
    ordered = {name: drills[name] for name in STORIES if name in drills}
    found = {"conditions": conditions(["torch"]), "drills": ordered}
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text("".join(page(found)), encoding="utf-8")


def page(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page, piece by piece."""
    machine, drills = found["conditions"], found["drills"]
    yield (
        "# Every kind of fault, live\n\n"
        "Written by `python -m tests.campaigns.drills --write` (`make campaign-drills`); the "
        "figures in full: [drills.json](drills.json). A tiny\nmodel on two replicas of two "
        "stages, on one emulated node of four slots or two of two (some 100 ms a step; 0.4 s for "
        "`disconnect`), the default\nrules, a checkpoint every ten steps. Each drill has a "
        "Trainmaster of its own.\n\n"
        f"Machine: {machine['cores']} cores ({machine['cpu']}), Python {machine['python']}, "
        f"torch {machine['versions'].get('torch', '-')}, busy with other work: the load average "
        "beside each drill is\nthat of its end, and seconds are upper bounds for an idle "
        "machine.\n\n"
        "*Noticed after*: from the fault to the event, by the machine's clock. *MTTR*: from the "
        "end of the last step before to the end of the first\nstep after, where steps stopped "
        "(median, where they stopped more than once). *Incident*: for how long it was open, "
        "probation included. *Lost*: steps\nthat were done again. *Off*: how far the buckets of "
        "goodput are from the wall time by the clock; 0.5 % is allowed.\n\n"
        "| drill | fault | noticed by | after, s | done | MTTR, s | incident, s | lost | "
        "generations | end | load |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for name, each in drills.items():
        yield (
            f"| {name} | {each['fault']} | {each['noticed']} | {number(each['noticed_after_s'])} "
            f"| {each['done']} | {number(each['mttr_s'])} | {number(each['closed_after_s'])} | "
            f"{each['lost_steps']} | {each['generations']} | {each['end']} | "
            f"{each['load'][0]:.0f} |\n"
        )
    yield "\n## Where the time went\n\nSeconds, those above 0.05.\n\n"
    yield "| drill | wall | productive | off | buckets |\n|---|---|---|---|---|\n"
    for name, each in drills.items():
        buckets = sorted(each["buckets"].items(), key=lambda item: -item[1])
        shown = ", ".join(
            f"{bucket.removesuffix('_s').replace('_', ' ')} {seconds:.1f}"
            for bucket, seconds in buckets
            if seconds >= 0.05
        )
        yield (
            f"| {name} | {each['wall_s']:.1f} | {each['productive_ratio']:.0%} | "
            f"{each['off_ratio']:.3%} | {shown} |\n"
        )
    yield "\n## Faults that stay\n"
    for name in ("stubborn", "kills"):
        if name in drills:
            yield f"\n{name}: {drills[name]['fault']}\n\n"
            yield "".join(f"- {rung}\n" for rung in drills[name]["ladder"])
            yield f"- {drills[name]['end']}: {drills[name]['because']}\n"
    wrong = [(name, each) for name, drill in drills.items() for each in drill["wrong"]]
    yield "\n## What was not as it should be\n\n"
    yield "".join(f"- {name}: {each}\n" for name, each in wrong) or "Nothing.\n"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
