"""The whole ring from a browser: real ranks, real agent, real control plane, real dashboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.browser.charts import read, until
from tests.scenarios.ring import OAK, Ring, free_port, tiny

LOSS = 'figure[data-panel="loss"]'
MINUTE_MS = 60_000


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[Ring, str]]:
    """A Trainmaster with a dashboard, and its one-time login link."""
    ring = Ring(tmp_path / "home")
    port = free_port()
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump({"nodes": [OAK]}))
    try:
        said = ring.call(
            *("up", "--detach", "--cluster", cluster, "--home", ring.home),
            *("--port", ring.port, "--dashboard-port", port),
        )
        link = re.search(rf"http://127\.0\.0\.1:{port}/auth/login\?code=\S+", said.stdout)
        assert link is not None, said.stdout
        yield ring, link.group()
    finally:
        ring.down()


def spec(tmp_path: Path) -> str:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the slow node waits for its peer and says why. " * 2000)
    told = tiny("from-the-browser", corpus, steps=600)
    told["checkpoint"] = {"every_steps": 50, "trust_after_steps": 5}
    return yaml.safe_dump(told)


def state_is(page: Page, state: str, minutes: float = 2) -> None:
    expect(page.locator(f'[data-state="{state}"]')).to_be_visible(timeout=minutes * MINUTE_MS)


def lines(page: Page) -> dict[str, list[float]]:
    """Return the steps of each line of the loss chart by its name."""
    found: dict[str, list[float]] = read(
        page,
        f"""Object.fromEntries((document.querySelector('{LOSS} .tm-plot')?._fullData ?? [])
        .filter(trace => trace.mode === 'lines').map(trace => [trace.name, [...trace.x]]))""",
    )
    return found


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def is_applied(page: Page, what: str) -> None:
    newest = page.locator(".tm-asks > li").first
    expect(newest).to_contain_text(what, timeout=MINUTE_MS)
    expect(newest).to_contain_text("✔ applied", timeout=2 * MINUTE_MS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_login_submit_watch_pause_resume_restore_finish(
    page: Page, ring: tuple[Ring, str], tmp_path: Path
) -> None:
    _, link = ring
    page.goto(link)
    expect(page.get_by_text("No run yet")).to_be_visible()
    page.get_by_role("link", name="Submit a run").click()
    page.get_by_label("Spec (YAML)").fill(spec(tmp_path))
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1.tm-title")).to_have_text("from-the-browser", timeout=2 * MINUTE_MS)

    # It moves, without the page being loaded again.
    state_is(page, "running")
    until(
        page,
        f"(document.querySelector('{LOSS} .tm-plot')?._fullData?.[0]?.x?.length ?? 0) > 1",
        timeout_ms=2 * MINUTE_MS,
    )
    seen = max(lines(page)["this run"])
    until(
        page,
        f"Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData[0].x) > {seen}",
        timeout_ms=MINUTE_MS,
    )

    press(page, "Pause")
    state_is(page, "paused")
    is_applied(page, "Pause")
    expect(page.get_by_role("button", name="Checkpoint now")).to_be_disabled()

    press(page, "Resume")
    state_is(page, "running")
    is_applied(page, "Resume")

    press(page, "Checkpoint now")
    is_applied(page, "Checkpoint now")
    press(page, "Hold")
    state_is(page, "held")
    is_applied(page, "Hold")

    # Back to the oldest checkpoint that is kept, with the next three batches left out.
    restore = page.locator('button[data-verb="restore"]:enabled')
    expect(restore.first).to_be_visible()
    restore.last.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("will be lost")
    dialog.get_by_role("spinbutton", name="Batches to skip").fill("3")
    dialog.get_by_role("spinbutton", name="Batches to skip").press("Enter")
    expect(dialog).to_contain_text("are skipped")
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog).to_be_hidden()
    is_applied(page, "Restore")
    state_is(page, "running")
    until(
        page,
        f"""document.querySelector('{LOSS} .tm-plot')._fullData
        .some(trace => trace.name === 'abandoned')""",
        timeout_ms=MINUTE_MS,
    )

    page.get_by_text("Events", exact=True).click()
    expect(page.locator("table.tm-table")).to_contain_text("skipped")

    state_is(page, "succeeded", minutes=8)
    until(
        page,
        f"Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData[0].x) === 600",
        timeout_ms=MINUTE_MS,
    )
