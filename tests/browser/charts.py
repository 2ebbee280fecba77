"""What tests and the bench do with the charts of a run, as a person would."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page

LOSS = 'figure[data-panel="loss"]'
LINE = f"{LOSS} .scatterlayer .trace path.js-line"
_TAKES_THE_MOUSE = f"""(() => {{
  const drag = document.querySelector('{LOSS} .nsewdrag.drag');
  drag.scrollIntoView({{ block: "center" }});
  const {{ x, y, width, height }} = drag.getBoundingClientRect();
  return [x, y, width, height];
}})()"""
_COUNT_FRAMES = f"""() => {{
  window.seen = {{ frames: 0, blank: 0 }};
  const look = () => {{
    window.seen.frames += 1;
    const path = document.querySelector('{LINE}');
    if (!path || !path.getAttribute("d")) window.seen.blank += 1;
    requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}}"""


def until(page: Page, expression: str, timeout_ms: float | None = None) -> None:
    """Wait until the JavaScript `expression` holds.

    A chart that is drawn anew is gone for a moment: what cannot be read then does not hold.
    """
    page.wait_for_function(
        f"() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }}",
        timeout=timeout_ms,
    )


def read(page: Page, expression: str) -> Any:
    """Return the value of the JavaScript `expression`, as soon as it can be read."""
    found = page.wait_for_function(
        f"() => {{ try {{ return {{ value: {expression} }} }} catch {{ return null }} }}"
    )
    return found.json_value()["value"]


def loss_chart(page: Page) -> Locator:
    """Return where the loss takes the mouse."""
    return page.locator(f"{LOSS} .nsewdrag.drag").first


def draw_zoom(page: Page) -> None:
    """Draw over the middle of the loss; the zoom comes when the mouse is let go."""
    left, top, width, height = read(page, _TAKES_THE_MOUSE)
    middle = top + height / 2
    page.mouse.move(left + width * 0.3, middle)
    page.mouse.down()
    page.mouse.move(left + width * 0.6, middle, steps=8)


def count_frames(page: Page) -> None:
    """Begin to count frames, and those in which the loss has no line."""
    page.evaluate(_COUNT_FRAMES)


def frames_seen(page: Page) -> dict[str, int]:
    """Return how many `frames` were drawn since `count_frames`, and how many were `blank`."""
    found: dict[str, int] = page.evaluate("window.seen")
    return found
