"""What a person waits for, seen in Chromium."""

from __future__ import annotations

import time

from playwright.sync_api import Browser, BrowserContext, Page, Response, WebSocket

from tests.browser.charts import LINE, LOSS, count_frames, draw_zoom, frames_seen, loss_chart

WAIT_MS = 120_000
LAST_CHART = 'figure[data-panel="latency_ms"] .scatterlayer .trace path.js-line'
COUNT_SERIES = """() => [...document.querySelectorAll(".tm-plot")]
  .flatMap((plot) => plot._fullData ?? []).filter((trace) => trace.mode === "lines").length"""


def context_of(browser: Browser, url: str, token: str) -> BrowserContext:
    """Return the browser of somebody who has logged in."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, locale="en-US")
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(url)
    page.fill("#secret", token)
    page.click("button[type=submit]")
    page.locator("table.tm-table a").first.wait_for()
    page.close()
    return context


def navigation_s(page: Page, url: str | None = None) -> float:
    """Return the seconds from a click on the newest run in the list to its first drawn chart.

    Args:
        url: loaded first; None comes back to the list within the session.
    """
    if url is None:
        page.locator('[data-testid="stSidebarNavLink"]').first.click()
    else:
        page.goto(url)
    link = page.locator("table.tm-table a").first
    link.wait_for()
    began = time.perf_counter()
    link.click()
    page.locator(LINE).first.wait_for(state="attached")
    return time.perf_counter() - began


def largest_message(page: Page, url: str) -> tuple[int, int]:
    """Return the bytes of the largest message while a page opens, and how many series came."""
    sizes: list[int] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", lambda told: sizes.append(len(told)))

    def hear(response: Response) -> None:
        if "/live/" in response.url:
            sizes.append(len(response.body()))

    page.on("websocket", listen)
    page.on("response", hear)
    page.goto(url)
    page.locator(LINE).first.wait_for(state="attached")
    page.locator(LAST_CHART).wait_for(state="attached")
    series: int = page.evaluate(COUNT_SERIES)
    page.remove_listener("websocket", listen)
    page.remove_listener("response", hear)
    return max(sizes), series


def zoom_s(page: Page) -> float:
    """Return the seconds from a zoom's end to exact figures of the window, drawn anew."""
    draw_zoom(page)
    began = time.perf_counter()
    page.mouse.up()
    page.locator(f"{LOSS} .tm-panel-figures:not([hidden])").wait_for()
    took = time.perf_counter() - began
    loss_chart(page).dblclick()
    page.locator(f"{LOSS} .tm-panel-figures").wait_for(state="hidden")
    return took


def frames(page: Page, seconds: float) -> dict[str, int]:
    """Return how many frames were drawn while the page was live, and how many without the line."""
    count_frames(page)
    page.wait_for_timeout(seconds * 1000)
    return frames_seen(page)
