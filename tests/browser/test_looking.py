"""Comparing runs, asking the planner, the audit log and the settings."""

import re

from playwright.sync_api import Page, expect

from tests.browser.charts import until
from tests.browser.conftest import log_in, wait_for
from tests.fakes.control_api import TOKEN, FakeControl


def test_runs_are_compared_by_an_address(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/compare?runs=r1,r3")
    expect(page.locator('figure[data-panel="loss"] .plot-container')).to_be_visible()
    expect(page.locator('tr[data-id="name"]')).to_contain_text("stdlib-gpt")
    page.get_by_role("radio", name="tokens").click()
    farthest = """() => Math.max(...document.querySelector('figure[data-panel="loss"] .tm-plot')
        ._fullData.flatMap(trace => [...trace.x]))"""
    until(page, f"({farthest})() === 400 * 4096")
    page.get_by_role("radio", name="time since the start").click()
    until(page, f"({farthest})() < 1")
    assert "axis=elapsed" in page.url
    page.locator('tr[data-id="r3"] a').click()
    expect(page.locator("h1.tm-title")).to_have_text("done one")


def test_runs_are_sought_by_words_in_either_language(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/?lang=zh-CN")
    expect(page.locator("tbody tr")).to_have_count(4)
    sought = page.get_by_role("textbox")
    sought.fill("已失败 signal")
    sought.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator('tr[data-id="r0"]')).to_be_visible()


def test_the_last_lines_of_a_rank_are_sought(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    page.get_by_role("radio", name="Logs").click()
    expect(page.get_by_text("step 99 of rank 0")).to_be_visible()
    page.get_by_role("textbox", name="Only lines with").fill("step 42")
    page.get_by_role("textbox", name="Only lines with").press("Enter")
    expect(page.get_by_text("step 99 of rank 0")).to_be_hidden()
    expect(page.get_by_text("step 42 of rank 0")).to_be_visible()


def test_the_planner_is_asked_and_says_why(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/plan")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_text("5 layers on fast and 3 on slow take equally long.")).to_be_visible()
    expect(page.locator('figure[data-panel="predicted"] .plot-container')).to_be_visible()
    expect(page.locator('td[data-column="family"]')).to_have_text("even split")
    page.get_by_role("button", name="Take this plan").click()
    spec = page.get_by_label("Spec (YAML)")
    expect(spec).to_have_value(re.compile(r"layers: \[5, 3\]"))
    expect(spec).to_have_value(re.compile(r"^name: planned"))


def test_a_node_is_calibrated_and_a_fault_injected_where_that_is_allowed(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/nodes")
    row = page.locator('tr[data-id="node-a"]')
    expect(row.locator('td[data-column="busy"]')).to_have_text(re.compile(r"\d+%"))
    row.get_by_role("button", name="Calibrate").click()
    expect(page.get_by_text("node-a measures itself")).to_be_visible()
    assert control.calibrated == ["node-a"]
    page.get_by_role("button", name="Inject").click()
    expect(page.get_by_text("Sent. Watch the run")).to_be_visible()
    [asked] = control.requests.values()
    assert (asked["kind"], asked["args"]["fault"]) == ("drill", "kill")


def test_a_press_is_sent_once_though_the_page_looks_again_just_then(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/nodes")
    expect(page.locator('tr[data-id="node-a"] button[data-verb=calibrate]')).to_be_enabled()
    # Streamlit sends a press a moment later, with all that the page holds by then. That moment is
    # made long enough for the page to look again in it, and to send the press with that look, too.
    page.evaluate(
        """() => {
            const later = window.setTimeout;
            window.setTimeout = (call, ms, ...rest) => later(call, ms || 3000, ...rest);
            document.querySelector('tr[data-id="node-a"] button[data-verb=calibrate]').click();
            window.setTimeout = later;
        }"""
    )
    wait_for(lambda: control.calibrated, 60, "the press")
    asked = control.num_asked
    wait_for(lambda: control.num_asked > asked + 6, 30, "looks after the press")
    assert control.calibrated == ["node-a"]


def test_the_audit_log_is_filtered_and_a_channel_tested(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/audit")
    expect(page.locator("tbody tr")).to_have_count(3)
    sought = page.get_by_role("textbox", name="Filter")
    sought.fill("pause lunch")
    sought.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_text("team has taken the test.")).to_be_visible()
    expect(page.get_by_text("Only an admin sees and makes tokens.")).to_be_visible()
