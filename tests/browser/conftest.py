"""Real Chromium against a real dashboard process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.fakes.control_api import FakeControl, full_control
from tests.fakes.control_http import serving

CHECKOUT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
TIMEOUT_MS = 60_000
Found = TypeVar("Found")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=ARGUMENTS
        )
        yield browser
        browser.close()


@pytest.fixture
def open_context(chromium: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Open a browser context as a new person; all are closed after the test."""
    with ExitStack() as stack:

        def open_one(**options: object) -> BrowserContext:
            told = {"viewport": {"width": 1440, "height": 1000}, "locale": "en-US", **options}
            context = chromium.new_context(**told)  # type: ignore[arg-type]
            context.set_default_timeout(TIMEOUT_MS)
            stack.callback(context.close)
            return context

        yield open_one


@pytest.fixture(scope="session")
def warm_context(chromium: Browser) -> Iterator[BrowserContext]:
    """One context for most tests: its cache spares each the megabytes of scripts."""
    context = chromium.new_context(viewport={"width": 1440, "height": 1000}, locale="en-US")
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


@pytest.fixture
def page(warm_context: BrowserContext) -> Iterator[Page]:
    """A page of somebody who has not logged in."""
    warm_context.clear_cookies()
    page = warm_context.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def shared_control() -> Iterator[tuple[FakeControl, str]]:
    control = full_control()
    with serving(control) as url:
        yield control, url


@pytest.fixture(scope="module")
def dashboard_url(
    shared_control: tuple[FakeControl, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    with dashboard(shared_control[1], home) as url:
        yield url


@pytest.fixture
def control(shared_control: tuple[FakeControl, str]) -> FakeControl:
    """The control plane behind `dashboard_url`, with fresh content."""
    shared, _ = shared_control
    with shared.lock:
        for name, value in vars(full_control()).items():
            if name != "lock":
                setattr(shared, name, value)
    return shared


@contextmanager
def dashboard(control_url: str, home: Path) -> Iterator[str]:
    """Run a dashboard on a free port; the block gets its address."""
    log = home / "dashboard.log"
    environment = {
        **os.environ,
        "TRAINMASTER_URL": control_url,
        "TRAINMASTER_HOME": str(home),
        "TRAINMASTER_DASHBOARD_PORT": "0",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard"],
            cwd=CHECKOUT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield wait_for(lambda: _address(home, process, log), 60, "the dashboard")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(home: Path, process: subprocess.Popen[bytes], log: Path) -> str | None:
    from trainmaster.home import Home

    assert process.poll() is None, log.read_text()
    record = Home(home).process("dashboard")
    if record is None or record.address is None or not answers(f"{record.address}/_stcore/health"):
        return None
    return record.address


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def wait_for(look: Callable[[], Found | None], limit_s: float, what: str) -> Found:
    """Return what `look` finds, looking until it does."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {limit_s:.0f} s")


def log_in(page: Page, url: str, token: str, path: str = "/") -> None:
    """Open `path` as somebody new: the login asks for a token and leads back to it."""
    page.goto(url + path)
    page.fill("#secret", token)
    page.click("button[type=submit]")
