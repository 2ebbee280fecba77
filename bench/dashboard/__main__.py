"""`python -m bench.dashboard`: how soon the dashboard answers a person in real Chromium, and what
each viewer costs its server, beside a blank page of the same framework. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, sync_playwright

from bench.conditions import conditions
from bench.dashboard import browser as seen_by
from bench.dashboard.site import Site, blank_page, growing, make, site
from bench.dashboard.viewers import Looks, look_all
from bench.spread import Spread
from dashboard.views.run_charts import LOOK_PATH
from tests.browser.conftest import ARGUMENTS, CHROMIUM

LOOKS_EVERY_S = 2.0
MEMORY_EVERY_S = 15.0
PARTS = ("blank", "person", "crowd")
GOALS = {
    "navigation_s": "<= 1",
    "zoom_s": "<= 0.3",
    "bytes_per_series": "<= 40960",
    "cpu_ms_per_tick": "<= 10",
    "blank_frames": "0",
    "mib_per_hour": "flat",
}


def main() -> None:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the run that is looked at")
    parser.add_argument("--runs", type=int, default=1000, help="that stand beside it in the list")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--viewers", type=int, default=50, help="without a browser")
    parser.add_argument("--browsers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of counting cost and frames")
    parser.add_argument("--minutes", type=float, default=60.0, help="of watching memory")
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts")
    parser.add_argument("--home", type=Path, help="where the runs are kept for the next time")
    parser.add_argument("--make", action="store_true", help="make the runs there, and no more")
    parser.add_argument("--out", type=Path, help="a folder for dashboard.json")
    given = parser.parse_args()
    parts = given.only or PARTS
    if given.make:
        make(given.home, given.steps, given.runs)
        return
    told: dict[str, Any] = {"asked": {name: str(value) for name, value in vars(given).items()}}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=ARGUMENTS
        )
        if "blank" in parts:
            _say("the blank page")
            told["blank"] = _blank(chromium, given.seconds)
        if "person" in parts or "crowd" in parts:
            _say(f"a run of {given.steps} steps and {given.runs} others are made")
            with site(given.steps, given.runs, given.home) as here:
                if "person" in parts:
                    told["person"] = _person(chromium, here, given)
                if "crowd" in parts:
                    with growing(here):
                        told["crowd"] = _crowd(chromium, here, given)
        chromium.close()
    told["conditions"] = conditions(["streamlit", "plotly", "playwright"])
    told["goals"] = GOALS
    text = json.dumps(told, indent=1)
    print(text)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / f"dashboard{'-'.join(['', *(given.only or ())])}.json").write_text(text + "\n")


def _blank(chromium: Browser, seconds: float) -> dict[str, Any]:
    with blank_page() as (url, process):
        page = chromium.new_page()
        began = time.perf_counter()
        page.goto(url)
        page.get_by_text("blank").wait_for(timeout=seen_by.WAIT_MS)
        opened_s = time.perf_counter() - began
        before = _cpu_s(process)
        page.wait_for_timeout(seconds * 1000)
        spent = _cpu_s(process) - before
        page.close()
        return {
            "opened_s": opened_s,
            "cpu_ms_per_tick": 1e3 * spent / (seconds / LOOKS_EVERY_S),
            "rss_mib": _rss_mib(process),
        }


def _person(chromium: Browser, here: Site, given: argparse.Namespace) -> dict[str, Any]:
    _say("nobody")
    idle = _cpu_s(here.dashboard)
    time.sleep(given.seconds)
    idle = _cpu_s(here.dashboard) - idle
    context = seen_by.context_of(chromium, here.url, here.token)
    page = context.new_page()
    _say("from the list to the first chart")
    first_s = seen_by.navigation_s(page, here.url)
    loaded = [seen_by.navigation_s(page, here.url) for _ in range(given.repetitions)]
    navigation = [seen_by.navigation_s(page) for _ in range(given.repetitions)]
    _say("zooms")
    zooms = [seen_by.zoom_s(page) for _ in range(given.repetitions)]
    _say("one viewer")
    with growing(here):
        page.wait_for_timeout(2e3 * LOOKS_EVERY_S)
        before = _cpu_s(here.dashboard), _cpu_s(here.control)
        frames = seen_by.frames(page, given.seconds)
        spent = _cpu_s(here.dashboard) - before[0]
        control_spent = _cpu_s(here.control) - before[1]
    largest, series = seen_by.largest_message(page, f"{here.url}/run?run={here.run}")
    context.close()
    return {
        "first_navigation_s": first_s,
        "navigation_s": Spread.of(navigation).json(),
        "navigation_after_loading_s": Spread.of(loaded).json(),
        "zoom_s": Spread.of(zooms).json(),
        "cpu_ms_per_tick": 1e3 * spent / (given.seconds / LOOKS_EVERY_S),
        "idle_cpu_ms_per_tick": 1e3 * idle / (given.seconds / LOOKS_EVERY_S),
        "control_cpu_ms_per_tick": 1e3 * control_spent / (given.seconds / LOOKS_EVERY_S),
        "frames": frames,
        "largest_message_bytes": largest,
        "series": series,
        "bytes_per_series": largest / max(1, series),
    }


def _crowd(chromium: Browser, here: Site, given: argparse.Namespace) -> dict[str, Any]:
    _say(f"{given.viewers} viewers and {given.browsers} browsers")
    context = seen_by.context_of(chromium, here.url, here.token)
    cookie = "; ".join(f"{each['name']}={each['value']}" for each in context.cookies())
    for _ in range(given.browsers):
        context.new_page().goto(f"{here.url}/run?run={here.run}")
    before, began = _cpu_s(here.dashboard), time.perf_counter()
    looking = look_all(
        here.url,
        cookie,
        "run",
        f"run={here.run}",
        Looks(f"{LOOK_PATH}?run={here.run}&axis=step&lang=en&zone=UTC&page=crowd", LOOKS_EVERY_S),
        viewers=given.viewers,
        seconds=given.seconds,
    )
    # The browser's driver has a loop of its own in this thread.
    with ThreadPoolExecutor(1) as thread:
        seen = thread.submit(asyncio.run, looking).result()
    seconds = time.perf_counter() - began
    spent = _cpu_s(here.dashboard) - before
    start_mib, samples, at_s = _rss_mib(here.dashboard), [], []
    began = time.monotonic()
    while (left_s := began + 60 * given.minutes - time.monotonic()) > 0:
        context.pages[0].wait_for_timeout(1e3 * min(MEMORY_EVERY_S, left_s))
        at_s.append(time.monotonic() - began)
        samples.append(round(_rss_mib(here.dashboard), 1))
    context.close()
    asked = sum(each.ticks for each in seen)
    return {
        "seconds": seconds,
        "cpu_cores": spent / seconds,
        "parts_asked": asked,
        "parts_answered": sum(each.answers for each in seen),
        "cpu_ms_per_part": 1e3 * spent / max(1, asked),
        "rss_mib": {"start": start_mib, "later": samples, "minutes": given.minutes},
        "mib_per_hour": _per_hour(at_s, samples),
    }


def _per_hour(at_s: Sequence[float], mib: Sequence[float]) -> float | None:
    """Return by how much memory would grow in an hour, by the second half of what was seen: what is
    built once is there by then. None where that is too little for a line.
    """
    half = len(mib) // 2
    if len(mib) - half < 3:
        return None
    return 3600 * statistics.linear_regression(at_s[half:], mib[half:]).slope


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def _say(line: str) -> None:
    print(f"... {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
