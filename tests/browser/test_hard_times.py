"""What must not break the dashboard: values that are no numbers, thousands of events, an outage
while somebody types, two tabs, and rows that arrive under the pointer.
"""

from playwright.sync_api import Page, expect

from tests.browser.charts import read
from tests.browser.conftest import log_in
from tests.fakes.control_api import TOKEN, FakeControl
from tests.fakes.control_run import FakeRun


def test_values_that_are_not_finite_are_gaps_with_a_mark_that_names_them(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    with control.lock:
        run = control.run("r1")
        assert run is not None
        run.infinite_steps = frozenset({180})
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    expect(page.locator('figure[data-panel="loss"] .plot-container')).to_be_visible()
    told = read(
        page,
        """document.querySelector('figure[data-panel="loss"] .tm-plot').data
        .filter(trace => Array.isArray(trace.text)).flatMap(trace => trace.text)""",
    )
    assert any("+INF" in each for each in told)
    assert any("NaN" in each for each in told)


def test_ten_thousand_events_leave_the_page_quick(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    with control.lock:
        first = control.events[0]
        control.events += [{**first, "id": 100 + number} for number in range(10_000)]
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    page.get_by_role("radio", name="Events").click()
    expect(page.locator('tr[data-id="10099"]')).to_be_visible()
    assert page.locator("tbody tr").count() <= 400


def test_what_is_being_typed_outlives_an_outage_and_a_reload(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/submit")
    area = page.get_by_label("Spec (YAML)")
    text = area.input_value().replace("stdlib-gpt", "typed-by-hand")
    control.down = True
    area.fill(text)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="out of reach").first).to_be_visible()
    expect(area).to_have_value(text)
    control.down = False
    page.reload()
    expect(page.get_by_label("Spec (YAML)")).to_have_value(text)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1.tm-title")).to_have_text("new-run")
    assert control.submitted == [text]


def test_two_tabs_see_what_the_other_has_done(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/rules")
    row = page.locator('tr[data-id="non_finite_gradient"]')
    expect(row).to_contain_text("enabled")
    second = page.context.new_page()
    second.goto(f"{dashboard_url}/rules")
    second.locator('tr[data-id="non_finite_gradient"]').get_by_role(
        "button", name="Disable"
    ).click()
    expect(row).to_contain_text("disabled")
    second.close()


def test_a_run_that_arrives_does_not_move_what_is_pressed(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN)
    link = page.locator('tr[data-id="r1"] a')
    link.focus()
    with control.lock:
        control.runs.append(FakeRun("r9", "just arrived"))
    expect(page.locator('tr[data-id="r9"]')).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("h1.tm-title")).to_have_text("stdlib-gpt")
