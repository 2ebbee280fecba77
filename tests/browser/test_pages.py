import pytest
from playwright.sync_api import Page, expect

from dashboard.i18n import catalogue
from tests.browser.conftest import log_in
from tests.fakes.control_api import TOKEN, FakeControl

VALID = """name: from-the-browser
workload: worker.workloads.byte_gpt:workload
train: {steps: 10, global_batch: 8}
"""


def fill_spec(page: Page, text: str) -> None:
    page.get_by_label("Spec (YAML)").fill(text)


def test_a_fresh_installation_says_what_to_do_next(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    control.runs.clear()
    log_in(page, dashboard_url, TOKEN)
    expect(page.get_by_text("No run yet")).to_be_visible()
    expect(page.get_by_text("trainmaster submit examples/stdlib_gpt.yaml")).to_be_visible()
    page.get_by_role("link", name="Compare runs").click()
    expect(page.locator("h1.tm-title")).to_have_text("Compare runs")
    expect(page.get_by_text("No run yet")).to_be_visible()
    page.get_by_role("button", name="Submit a run here").click()
    expect(page.get_by_label("Spec (YAML)")).to_be_visible()


def test_the_list_says_what_is_wrong_with_each_run(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN)
    wrong = page.locator('tr[data-id="r1"] td[data-column="wrong"]')
    expect(wrong).to_contain_text("Firing: non_finite_gradient")
    expect(wrong).to_contain_text("rolled back to step 100")
    expect(page.locator('tr[data-id="r2"] td[data-column="wrong"]')).to_have_text(
        "waits for 4 slots"
    )
    expect(page.locator('tr[data-id="r0"] td[data-column="state"]')).to_contain_text("failed")


def test_a_run_opens_within_the_session(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN)
    page.locator("table.tm-table").wait_for()
    page.evaluate("window.same_session = true")
    page.locator('tr[data-id="r1"] a').click()
    expect(page.locator("h1.tm-title")).to_have_text("stdlib-gpt")
    assert page.evaluate("window.same_session")
    assert "run=r1" in page.url


def test_every_problem_of_a_spec_is_shown_with_its_line_and_nothing_is_sent(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/submit")
    fill_spec(page, VALID.replace("steps: 10", "steps: 0, lr: 3") + "colour: red\n")
    expect(page.get_by_role("alert")).to_contain_text("Not submitted")
    told = page.locator(".tm-problems")
    expect(told).to_contain_text("Line 3: train.steps")
    expect(told).to_contain_text("Line 3: train.lr")
    expect(told).to_contain_text("Line 4: colour")
    assert control.submitted == []
    expect(page.get_by_label("Spec (YAML)")).to_have_value(
        VALID.replace("steps: 10", "steps: 0, lr: 3") + "colour: red\n"
    )


def test_submitting_opens_the_run(page: Page, dashboard_url: str, control: FakeControl) -> None:
    log_in(page, dashboard_url, TOKEN, "/submit")
    fill_spec(page, VALID)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1.tm-title")).to_have_text("new-run")
    assert control.submitted == [VALID]
    assert "run=new-run" in page.url


def test_a_rule_is_switched_off_and_edited_as_text(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/rules")
    row = page.locator('tr[data-id="non_finite_gradient"]')
    expect(row).to_contain_text("1. rollback (skip true)")
    row.get_by_role("button", name="Disable").click()
    expect(row).to_contain_text("disabled")
    row.get_by_role("button", name="Edit").click()
    area = page.get_by_role("dialog").get_by_label("Rule (YAML)")
    stored = area.input_value()
    area.fill(stored.replace("mode: act", "mode: shout"))
    expect(page.get_by_role("dialog")).to_contain_text("'observe', 'ask' or 'act'")
    expect(page.get_by_role("dialog").get_by_role("button", name="Save")).to_be_disabled()
    area.fill(stored.replace("mode: act", "mode: observe"))
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(row.locator('td[data-column="mode"] .tm-chosen')).to_have_text("observe")
    row.get_by_role("button", name="ask", exact=False).click()
    expect(row.locator('td[data-column="mode"] .tm-chosen')).to_have_text("ask")


def test_alerts_lead_to_their_run(page: Page, dashboard_url: str, control: FakeControl) -> None:
    log_in(page, dashboard_url, TOKEN, "/alerts")
    expect(page.get_by_text("on probation")).to_be_visible()
    page.get_by_role("link", name="r1").first.click()
    expect(page.locator("h1.tm-title")).to_have_text("stdlib-gpt")


def test_nodes_say_who_is_lost(page: Page, dashboard_url: str, control: FakeControl) -> None:
    log_in(page, dashboard_url, TOKEN, "/nodes")
    expect(page.locator('tr[data-id="node-b"]')).to_contain_text("lost")
    expect(page.locator('tr[data-id="node-a"]')).to_contain_text("present")


def test_the_language_changes_without_losing_the_page(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/nodes")
    page.locator("[data-testid=stSidebar] [role=combobox]").click()
    page.get_by_role("option", name="简体中文").click()
    expect(page.get_by_role("heading", name="节点")).to_be_visible()
    page.get_by_role("link", name="规则").click()
    expect(page.get_by_role("heading", name="规则", exact=True)).to_be_visible()


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_no_page_shows_a_raw_key_or_speaks_another_language(
    page: Page, dashboard_url: str, control: FakeControl, language: str
) -> None:
    log_in(page, dashboard_url, TOKEN, f"/?lang={language}")
    words = catalogue(language)
    titles = {
        "/submit": words["submit.title"],
        "/alerts": words["alerts.title"],
        "/nodes": words["nodes.title"],
        "/rules": words["rules.title"],
        "/compare?runs=r1,r3": words["compare.title"],
        "/plan": words["plan.title"],
        "/audit": words["audit.title"],
        "/settings": words["settings.title"],
        "/run?run=r1": "stdlib-gpt",
        "/": words["fleet.title"],
    }
    for path, heading in titles.items():
        mark = "&" if "?" in path else "?"
        page.goto(f"{dashboard_url}{path}{mark}lang={language}")
        expect(page.locator("h1.tm-title")).to_have_text(heading)
        expect(page.get_by_role("link", name=words["nav.nodes"])).to_be_visible()
        shown = page.locator("body").inner_text().split()
        assert [key for key in words if key in shown] == [], path
