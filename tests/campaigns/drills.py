"""`python -m tests.campaigns.drills [--only NAME ...] [--write]`: every kind of fault, live, on a
small run that trains on two replicas of two stages: what noticed it and when, what was done, what
it cost, and how the run ended. Some minutes; the right to mount for `disk-full`.

With `--write` the outcomes go into docs/campaigns/drills.json, each in the place of the one before
under its name, and all that stand there into docs/campaigns/drills.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.conditions import conditions
from tests.campaigns.drill_stories import STORIES
from tests.campaigns.telling import FOLDER, Json, tell

KEPT, PAGE = FOLDER / "drills.json", FOLDER / "drills.md"


def main() -> int:
    stories = {name: partial(_outcome, name) for name in STORIES}
    return tell("python -m tests.campaigns.drills", stories, write)


def _outcome(name: str, folder: Path, corpus: Path) -> Json:
    return STORIES[name](folder / "home", corpus).to_json()


def write(name: str, told: Json) -> None:
    """Keep one outcome, in the place of the one before, and write the page of all that are kept."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"drills": {}}
    machine = conditions(["torch"])
    drills = {**kept["drills"], name: {**told, "cpu": machine["cpu"]}}
    ordered = {name: drills[name] for name in STORIES if name in drills}
    found = {"conditions": machine, "drills": ordered}
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
        f"Machine: {machine['cores']} cores ({processors(drills)}), Python {machine['python']}, "
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


def processors(drills: Mapping[str, Any]) -> str:
    """Return on which processor the drills ran: on one, or which on which."""
    ran: dict[str, list[str]] = {}
    for name, each in drills.items():
        ran.setdefault(each["cpu"], []).append(name)
    if len(ran) == 1:
        return next(iter(ran))
    return "; ".join(f"{cpu}: {', '.join(names)}" for cpu, names in ran.items())


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
