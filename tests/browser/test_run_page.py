from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.charts import LOSS
from tests.browser.conftest import log_in
from tests.browser.opening import open_run
from tests.fakes.control_api import TOKEN, VIEWER_TOKEN, FakeControl
from tests.fakes.control_run import FakeRun

HOSTILE = (
    '<img src=x onerror="window.hacked=1"> **bold** [a](javascript:window.hacked=1) :red[x] $y$'
)


def test_a_button_is_shown_from_sent_to_applied(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    page.get_by_role("button", name="Pause").click()
    asks = page.locator(".tm-asks li").first
    expect(asks).to_contain_text("✔ sent")
    expect(asks).to_contain_text("○ received")
    (request,) = control.requests.values()
    assert (request["kind"], request["expected_version"]) == ("pause", 7)
    request["order"]["state"] = "received"
    expect(asks).to_contain_text("✔ received by rank 0, which tells all 4")
    request["state"], request["step"] = "applied", 190
    expect(asks).to_contain_text("✔ applied at step 190 (told by 4 of 4 ranks)")
    with control.lock:
        control.run("r1").state = "paused"  # type: ignore[union-attr]
    expect(page.get_by_role("button", name="Resume")).to_be_enabled()
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()


def test_a_refusal_is_told_in_a_sentence(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    control.refuse_requests = "pause is refused: the run is recovering"
    open_run(page, dashboard_url)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("alert").filter(has_text="the run is recovering")).to_be_visible()
    assert control.requests == {}


def test_stop_asks_once_and_tells_what_would_be_lost(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stop this run?")
    assert control.requests == {}
    dialog.get_by_text("Take a checkpoint first").click()
    expect(dialog).to_contain_text("10 steps since the newest one are lost")
    dialog.get_by_role("button", name="Stop the run").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    assert control.requests == {}
    expect(page.locator(".tm-asks li").first).to_contain_text("Stop")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    (request,) = control.requests.values()
    assert (request["kind"], request["args"]) == ("stop", {"checkpoint": False})


def test_a_stop_that_is_undone_is_never_sent(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
    undo = page.get_by_role("button", name="Undo")
    undo.click()
    expect(undo).to_have_count(0)
    page.get_by_role("button", name="Checkpoint now").click()
    expect(page.locator(".tm-asks li").first).to_contain_text("Checkpoint now")
    page.wait_for_timeout(6000)  # longer than a stop that was not undone would have waited
    assert [each["kind"] for each in control.requests.values()] == ["checkpoint"]


def test_what_another_person_asked_is_told_before_one_presses(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    control.post(
        "/v1/runs/r1/requests",
        {
            "kind": "pause",
            "args": {},
            "why": "lunch",
            "idempotency_key": "theirs",
            "expected_version": 7,
        },
    )
    told = page.get_by_role("status").filter(has_text="token:operator asked")
    expect(told).to_contain_text("Pause (lunch)")
    control.requests["1"]["state"] = "applied"
    expect(told).to_have_count(0)


def test_restore_names_the_row_that_was_pressed_though_another_arrives(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    row = page.locator('tr[data-id="r1-g1-s100"]')
    row.scroll_into_view_if_needed()
    newer = {**control.checkpoints[-1], "id": "r1-g2-s190", "step": 190}
    control.checkpoints.append(newer)
    expect(page.locator('tr[data-id="r1-g2-s190"]')).to_be_visible()
    row.get_by_role("button", name="Restore").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("r1-g1-s100")
    expect(dialog).to_contain_text("Steps 101 to 190 will be lost")
    dialog.get_by_role("spinbutton", name="Batches to skip").fill("5")
    dialog.get_by_role("spinbutton", name="Batches to skip").press("Enter")
    expect(dialog).to_contain_text("batches 101 to 105 are skipped")
    control.advance("r1")
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".tm-asks li").first).to_contain_text("Restore")
    (request,) = control.requests.values()
    assert request["args"] == {"checkpoint": "r1-g1-s100", "skip_steps": 5}


def test_a_restore_may_take_another_layout_with_its_prediction(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    row = page.locator('tr[data-id="r1-g1-s100"]')
    row.get_by_role("button", name="Restore").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 of 5 restarts are spent. 1 of 3 rollbacks are spent.")
    dialog.get_by_role("radio", name="fewer replicas").click()
    expect(dialog).to_contain_text("another plan: 1 replicas")
    dialog.get_by_role("button", name="Predict").click()
    expect(dialog).to_contain_text("0.123 s")
    expect(dialog).to_contain_text("predicted to take 0.118 s a step")
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog).to_be_hidden()
    asks = page.locator(".tm-asks > li").first
    expect(asks).to_contain_text("○ first new step")
    (request,) = control.requests.values()
    assert request["args"] == {
        "checkpoint": "r1-g1-s100",
        "plan": {
            "micro_batch": 4,
            "schedule": "1f1b",
            "pipelines": [{"layers": [4, 4], "micro_batches": 8}],
        },
    }


def test_export_shows_the_command_that_writes_the_weights(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    row = page.locator('tr[data-id="r1-g1-s100"]')
    row.get_by_role("button", name="Export").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("trainmaster export-weights r1-g1-s100 --out r1-g1-s100-weights")


def test_the_head_says_what_comes_next_and_the_spec_of_what_the_run_was_made(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    expect(page.locator(".tm-next")).to_contain_text("A checkpoint at step 200.")
    expect(page.locator(".tm-next")).to_contain_text("ends at step 198 at the earliest")
    made_of = page.get_by_role("radio", name="Spec and plan")
    page.get_by_role("link", name="Checkpoints, pipeline, events, logs").click()
    expect(made_of).to_be_in_viewport()
    made_of.click()
    expect(page.locator("table.tm-table").last).to_contain_text("c" * 64)


def test_an_address_that_leads_below_the_charts_stays_there_while_they_take_their_places(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    page.goto("about:blank")
    page.goto(f"{dashboard_url}/run?run=r1#below")
    expect(page.locator('figure[data-panel="heat"]')).to_be_attached()
    expect(page.get_by_role("radio", name="Spec and plan")).to_be_in_viewport()
    page.mouse.wheel(0, -100_000)
    expect(page.locator("h1.tm-title")).to_be_in_viewport()


def test_a_quarantined_checkpoint_cannot_be_restored(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    button = page.locator('tr[data-id="r1-g1-s150"]').get_by_role("button", name="Restore")
    expect(button).to_be_disabled()
    assert "quarantined" in (button.get_attribute("title") or "")


def test_a_viewer_sees_all_and_can_press_nothing(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url, token=VIEWER_TOKEN)
    for name in ("Pause", "Hold", "Resume", "Checkpoint now", "Stop"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()


def test_the_control_plane_may_go_and_come_back(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    control.down = True
    banner = page.get_by_role("alert").filter(has_text="out of reach")
    expect(banner.first).to_be_visible()
    expect(page.locator("h1.tm-title")).to_have_text("stdlib-gpt")
    expect(page.locator(f"{LOSS} .plot-container")).to_be_visible()
    assert "Traceback" not in page.content()
    control.down = False
    control.advance("r1", 3)
    expect(banner).to_have_count(0)


def test_a_page_opened_while_the_control_plane_is_away_recovers_by_itself(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN)
    expect(page.locator("table.tm-table")).to_be_visible()
    control.down = True
    page.goto(f"{dashboard_url}/run?run=r3")
    expect(page.get_by_role("alert").first).to_contain_text("out of reach")
    control.down = False
    expect(page.locator("h1.tm-title")).to_have_text("done one")


def test_an_unknown_run_is_told_not_crashed_on(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=nope")
    expect(page.get_by_role("alert").first).to_contain_text("no such thing")
    page.get_by_role("link", name="See all runs").click()
    expect(page.locator('tr[data-id="r1"]')).to_be_visible()


def test_hostile_names_are_shown_as_they_are(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    with control.lock:
        control.runs.append(FakeRun("r9", HOSTILE, because=HOSTILE))
        control.events.append(
            {
                **control.events[0],
                "id": 99,
                "run": "r9",
                "kind": HOSTILE,
                "because": HOSTILE,
                "actor": HOSTILE,
            }
        )
        control.checkpoints.append(
            {**control.checkpoints[0], "id": "r9-g1-s50", "run": "r9", "because": HOSTILE}
        )
    log_in(page, dashboard_url, TOKEN)
    link = page.locator('tr[data-id="r9"] a')
    expect(link).to_have_text(HOSTILE)
    link.click()
    expect(page.locator("h1.tm-title")).to_have_text(HOSTILE)
    expect(page.locator(".tm-head")).to_contain_text(HOSTILE)
    page.get_by_text("Events", exact=True).click()
    expect(page.locator('tr[data-id="99"] td[data-column="because"]')).to_have_text(HOSTILE)
    page.get_by_text("Checkpoints", exact=True).click()
    page.locator('tr[data-id="r9-g1-s50"]').get_by_role("button", name="Restore").click()
    expect(page.get_by_role("dialog")).to_contain_text(HOSTILE)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0


def test_a_run_that_ended_is_shown_and_asked_about_no_more(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url, "r3")
    expect(page.locator('[data-state="succeeded"]')).to_be_visible()
    expect(page.get_by_text("No checkpoint yet.")).to_be_visible()
    asked = control.num_asked
    page.wait_for_timeout(3000)
    assert control.num_asked == asked


def test_the_page_is_usable_on_a_narrow_screen_in_chinese(
    open_context: Callable[..., BrowserContext], dashboard_url: str, control: FakeControl
) -> None:
    context = open_context(
        viewport={"width": 400, "height": 900}, locale="zh-CN", color_scheme="dark"
    )
    page = context.new_page()
    open_run(page, dashboard_url)
    expect(page.locator(".tm-head")).to_contain_text("运行中")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    text = page.locator("body").inner_text()
    assert "steer." not in text
    assert "column." not in text
