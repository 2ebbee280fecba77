"""`python -m scripts.screenshots [VIEW...]`: a picture of every view of the dashboard in each
language, from the control plane of values that the browser tests use. Needs Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from dashboard.i18n import LANGUAGES
from tests.browser.conftest import ARGUMENTS, CHROMIUM, dashboard, log_in
from tests.fakes.control_api import TOKEN, full_control
from tests.fakes.control_http import serving

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SETTLES_MS = 1500
PATIENCE_MS = 60_000
COLOURS = 256
PANELS = "[...document.querySelectorAll('figure[data-panel]')]"
DRAWN = f"{PANELS}.every((each) => each.querySelector('.plot-container'))"
WIDE, NARROW = {"width": 1280, "height": 720}, {"width": 390, "height": 844}


@dataclass(frozen=True, slots=True)
class View:
    """A picture to take.

    Attributes:
        ready: what must be seen before it is taken.
        click: what is pressed first, and then waited for `ready`.
    """

    path: str
    ready: str
    click: str = ""


VIEWS = {
    "fleet": View("/", "table.tm-table"),
    "run": View("/run?run=r1", 'figure[data-panel="loss"] .plot-container'),
    "pipeline": View(
        "/run?run=r1",
        'figure[data-panel="planned"] .plot-container',
        click="[data-testid=stMain] [role=radio]:has-text('Pipeline'), "
        "[data-testid=stMain] [role=radio]:has-text('流水线')",
    ),
    "alerts": View("/alerts", "table.tm-table"),
    "incident": View("/alerts?incident=i1", ".tm-story"),
    "rules": View("/rules", "table.tm-table"),
    "rule": View("/rules", "[role=dialog] .tm-editor-text", click="button[data-verb=edit]"),
    "nodes": View("/nodes", "table.tm-table"),
    "compare": View("/compare?runs=r1,r3", 'figure[data-panel="loss"] .plot-container'),
    "plan": View(
        "/plan", 'figure[data-panel="predicted"] .plot-container', click=".st-key-plan-do button"
    ),
    "submit": View("/submit", ".tm-editor-text"),
    "audit": View("/audit", "table.tm-table"),
    "settings": View("/settings", "table.tm-table"),
}


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("views", nargs="*", choices=[*VIEWS, []], help="only these")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--language", choices=list(LANGUAGES), action="append")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--narrow", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    names = asked.views or list(VIEWS)
    with (
        tempfile.TemporaryDirectory() as home,
        serving(full_control()) as control,
        dashboard(control, Path(home)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=ARGUMENTS
        )
        for language in asked.language or LANGUAGES:
            page = _page(browser, url, language, dark=asked.dark, narrow=asked.narrow)
            for name in names:
                _take(page, url, VIEWS[name], language, asked.out / f"{name}.{language}.png")
        browser.close()


def _page(browser: Browser, url: str, language: str, *, dark: bool, narrow: bool) -> Page:
    context = browser.new_context(
        viewport=NARROW if narrow else WIDE,
        locale=language,
        color_scheme="dark" if dark else "light",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    log_in(page, url, TOKEN, f"/?lang={language}")
    page.locator("table.tm-table").first.wait_for()
    return page


def _take(page: Page, url: str, view: View, language: str, file: Path) -> None:
    size = page.viewport_size
    assert size is not None
    mark = "&" if "?" in view.path else "?"
    page.goto(f"{url}{view.path}{mark}lang={language}")
    if view.click:
        page.locator(view.click).first.click()
    page.locator(view.ready).first.wait_for()
    page.wait_for_function("!document.querySelector('[data-testid=stSpinner]')")
    page.evaluate("document.fonts.ready")
    _grow(page)
    page.wait_for_function(DRAWN)
    page.screenshot(path=str(file))
    _shrink(file)
    page.set_viewport_size(size)


def _shrink(file: Path) -> None:
    """Write the picture with as many colours as it needs to be read, which takes a third."""
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def _grow(page: Page) -> None:
    """Make the window as high as its page, which scrolls within it."""
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    assert page.viewport_size is not None
    page.set_viewport_size({"width": page.viewport_size["width"], "height": int(height)})
    page.wait_for_timeout(SETTLES_MS)  # Plotly draws anew in the place that it now has


if __name__ == "__main__":
    main()
