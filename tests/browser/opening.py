"""How tests come to a page of the dashboard."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.charts import LOSS
from tests.browser.conftest import log_in
from tests.fakes.control_api import TOKEN


def open_run(page: Page, url: str, run: str = "r1", token: str = TOKEN) -> None:
    """Open the page of a run as somebody new, and wait for its first chart."""
    log_in(page, url, token, f"/run?run={run}")
    expect(page.locator(f"{LOSS} .plot-container")).to_be_visible()
