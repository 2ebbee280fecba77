"""What people do about alerts, incidents, rules and checkpoints."""

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import log_in
from tests.fakes.control_api import TOKEN, VIEWER_TOKEN, FakeControl


def test_an_incident_is_told_as_a_story_and_answered_once(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/alerts")
    page.locator('tr[data-id="i1"]').get_by_role("button", name="Story").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator('li[data-part="sign"]')).to_contain_text("from step 150 on")
    expect(dialog.locator('li[data-part="event"]')).to_contain_text("skipping batches 150 to 152")
    expect(dialog.locator('li[data-part="probation"]')).to_contain_text("12 of 20 healthy steps")
    expect(dialog.locator('li[data-part="tried"]')).to_contain_text("r1-g1-s150 is quarantined")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    row = page.locator('tr[data-id="i2"]')
    row.get_by_role("button", name="Story and answer").click()
    expect(dialog).to_contain_text("the incident is closed without an action")
    dialog.get_by_role("button", name="Approve: cordon").click()
    expect(dialog).to_be_hidden()
    expect(row.get_by_role("button", name="Story and answer")).to_be_hidden()
    [(name, verb, body)] = control.answers
    assert (name, verb) == ("i2", "approve")
    assert len(body["idempotency_key"]) == 32


def test_a_rule_is_silenced_for_a_run_and_the_silence_ended(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/alerts")
    page.get_by_role("button", name="Silence").click()
    page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    silence = page.locator('tr[data-id="1"]')
    expect(silence).to_contain_text("non_finite_gradient")
    assert [(each["run"], each["for_s"]) for each in control.silences] == [("r1", 7200)]
    silence.get_by_role("button", name="End now").click()
    expect(page.get_by_text("Nothing is silenced.")).to_be_visible()


def test_a_rule_is_tried_on_a_run_before_it_is_saved(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/rules")
    page.locator('tr[data-id="non_finite_gradient"]').get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Try").click()
    expect(dialog).to_contain_text("r1: 1 findings in 190 steps")
    expect(dialog.locator('td[data-column="fired"]')).to_have_text("152")
    expect(dialog.locator("figure .plot-container")).to_be_visible()
    assert control.backtests[0]["runs"] == ["r1"]
    dialog.get_by_role("radio", name="A CSV").click()
    csv = {"name": "old.csv", "mimeType": "text/csv", "buffer": b"step,non_finite\n1,0\n"}
    dialog.locator("input[type=file]").set_input_files(csv)  # type: ignore[arg-type]
    dialog.get_by_text("old.csv").wait_for()
    dialog.get_by_role("button", name="Try").click()
    expect(dialog).to_contain_text("old.csv: 1 findings")
    assert control.backtests[1]["csv"] == [{"name": "old.csv", "text": "step,non_finite\n1,0\n"}]
    assert control.rules[0]["mode"] == "act"


def test_a_rule_is_written_in_a_form_and_the_text_follows(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/rules?rule=utilisation_low")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name="Form").click()
    bound = dialog.get_by_label("Bound")
    expect(bound).to_have_value("0.9")
    bound.fill("0.5")
    bound.press("Enter")
    dialog.get_by_role("radio", name="Text").click()
    expect(dialog.get_by_label("Rule (YAML)")).to_have_value(re.compile(r"value: 0\.5\b"))
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    assert control.rules[1]["when"] == {"condition": "below", "value": 0.5}


def test_a_viewer_reads_stories_and_rules_and_changes_nothing(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, VIEWER_TOKEN, "/alerts?incident=i2")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Your role may only look.")
    expect(dialog.get_by_role("button", name="Approve")).to_have_count(0)


def test_a_checkpoint_is_read_back_and_what_would_go_is_said(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    row = page.locator('tr[data-id="r1-g1-s100"]')
    row.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("r1-g1-s100: every byte is as its manifest says.")).to_be_visible()
    page.get_by_text("Show which would go now").click()
    expect(row).to_contain_text("would go: 3 newer ones")


def test_two_checkpoints_are_compared_layer_by_layer(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    row = page.locator('tr[data-id="r1-g2-s180"]')
    row.get_by_role("button", name="Compare").click()
    page.locator(".st-key-distance-do button").first.click()
    expect(page.locator('tr[data-id="layer-4"]')).to_contain_text("11.00%")
    expect(page.get_by_text("1 tensors are in one of them alone")).to_be_visible()
    assert list(control.comparisons) == [("r1-g2-s180", "r1-g1-s150")]
    page.get_by_text("The tensors that changed most").click()
    expect(page.locator('tr[data-id="layers.4.attn.q.weight"]')).to_be_visible()
    assert "compare=r1-g2-s180" in page.url
    page.locator(".st-key-distance-close button").first.click()
    expect(page.locator('tr[data-id="whole"]')).to_have_count(0)


def test_a_recorded_step_is_shown_beside_its_plan_and_another_recorded(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    page.get_by_role("radio", name="Pipeline").click()
    for panel in ("measured", "planned"):
        expect(page.locator(f'figure[data-panel="{panel}"] .plot-container')).to_be_visible()
    expect(page.locator('tr[data-id="3"] td[data-column="bubble_ratio"]')).to_have_text("24.0%")
    page.get_by_role("button", name="Record a step").click()
    expect(page.locator(".tm-asks")).to_contain_text("Record a step")
    assert [each["kind"] for each in control.requests.values()] == ["timeline"]
    expect(page.locator('figure[data-panel="heat"] .plot-container')).to_be_visible()
