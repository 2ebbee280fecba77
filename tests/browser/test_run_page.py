from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import log_in
from tests.fakes.control_api import TOKEN, VIEWER_TOKEN, FakeControl, FakeRun

LOSS = 'figure[data-panel="loss"]'
HOSTILE = (
    '<img src=x onerror="window.hacked=1"> **bold** [a](javascript:window.hacked=1) :red[x] $y$'
)


def open_run(page: Page, url: str, run: str = "r1", token: str = TOKEN) -> None:
    log_in(page, url, token, f"/run?run={run}")
    expect(page.locator(f"{LOSS} .plot-container")).to_be_visible()


def x_range(page: Page, panel: str = "loss") -> list[float]:
    found: list[float] = page.evaluate(
        f"document.querySelector('figure[data-panel={panel}] .tm-plot')._fullLayout.xaxis.range"
    )
    return found


def newest_x(page: Page) -> float:
    found: float = page.evaluate(
        f"""Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData
        .filter(trace => trace.mode === 'lines').flatMap(trace => [...trace.x]))"""
    )
    return found


def advance(control: FakeControl, steps: int = 10) -> None:
    with control.lock:
        run = control.run("r1")
        assert run is not None
        run.advance(steps)


def zoom(page: Page) -> None:
    plot = page.locator(f"{LOSS} .nsewdrag.drag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=8)
    page.mouse.up()


def test_charts_keep_their_zoom_while_new_points_arrive(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    whole = x_range(page)
    page.evaluate(f"document.querySelector('{LOSS} .tm-plot').dataset.mine = 'yes'")
    zoom(page)
    page.wait_for_function(
        f"document.querySelector('{LOSS} .tm-plot')._fullLayout.xaxis.range[0] > {whole[0] + 20}"
    )
    zoomed = x_range(page)
    before = newest_x(page)
    for _ in range(3):
        advance(control)
        page.wait_for_function(
            f"""Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData
            .filter(trace => trace.mode === 'lines').flatMap(trace => [...trace.x])) > {before}"""
        )
        before = newest_x(page)
    assert x_range(page) == pytest.approx(zoomed)
    assert page.evaluate(f"document.querySelector('{LOSS} .tm-plot').dataset.mine") == "yes"


def test_one_zoom_moves_all_charts_and_a_double_click_shows_all_again(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    whole = x_range(page)
    zoom(page)
    page.wait_for_function(
        f"document.querySelector('{LOSS} .tm-plot')._fullLayout.xaxis.range[0] > {whole[0] + 20}"
    )
    zoomed = x_range(page)
    for panel in ("grad_norm", "utilization_ratio"):
        page.wait_for_function(
            f"""document.querySelector('figure[data-panel={panel}] .tm-plot')
            ._fullLayout.xaxis.range[0] > {whole[0] + 20}"""
        )
        assert x_range(page, panel) == pytest.approx(zoomed)
    page.locator(f"{LOSS} .nsewdrag.drag").first.dblclick()
    page.wait_for_function(
        f"document.querySelector('{LOSS} .tm-plot')._fullLayout.xaxis.range[0] < 5"
    )


def test_no_frame_is_blank_while_charts_update(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    page.evaluate(
        f"""window.frames_seen = 0; window.blank = 0;
        (function look() {{
            window.frames_seen += 1;
            const line = document.querySelector('{LOSS} .scatterlayer .trace path.js-line');
            if (!line) window.blank += 1;
            requestAnimationFrame(look);
        }})()"""
    )
    before = newest_x(page)
    for _ in range(3):
        advance(control)
        page.wait_for_function(
            f"""Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData
            .filter(trace => trace.mode === 'lines').flatMap(trace => [...trace.x])) > {before}"""
        )
        before = newest_x(page)
    assert page.evaluate("window.frames_seen") > 30
    assert page.evaluate("window.blank") == 0


def test_the_chart_offers_no_upload(page: Page, dashboard_url: str, control: FakeControl) -> None:
    open_run(page, dashboard_url)
    page.locator(LOSS).hover()
    titles = page.eval_on_selector_all(
        f"{LOSS} .modebar-btn", "buttons => buttons.map(each => each.dataset.title)"
    )
    assert titles == ["Zoom", "Pan", "Show all", "Save as PNG"]


def test_the_abandoned_branch_is_grey_beside_the_surviving_one(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    names: list[Any] = page.evaluate(
        f"""document.querySelector('{LOSS} .tm-plot')._fullData
        .filter(trace => trace.mode === 'lines').map(trace => [trace.name, trace.line.color])"""
    )
    assert [name for name, _ in names] == ["this run", "abandoned"]
    assert names[1][1] == "#8A94A3"


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
    expect(asks).to_contain_text("✔ received")
    request["state"], request["step"] = "applied", 195
    expect(asks).to_contain_text("✔ applied at step 195")
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
    expect(page.locator(".tm-asks li").first).to_contain_text("Stop")
    (request,) = control.requests.values()
    assert (request["kind"], request["args"]) == ("stop", {"checkpoint": False})


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
    advance(control)
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".tm-asks li").first).to_contain_text("Restore")
    (request,) = control.requests.values()
    assert request["args"] == {"checkpoint": "r1-g1-s100", "skip_steps": 5}


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
    advance(control, 3)
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
