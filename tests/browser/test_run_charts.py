"""The charts of a run's page: live, zoomed, linked, saved."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.charts import LOSS, count_frames, draw_zoom, frames_seen, loss_chart, read, until
from tests.browser.conftest import log_in
from tests.browser.opening import open_run
from tests.fakes.control_api import TOKEN, FakeControl


def x_range(page: Page, panel: str = "loss") -> list[float]:
    found: list[float] = read(
        page,
        f"document.querySelector('figure[data-panel={panel}] .tm-plot')._fullLayout.xaxis.range",
    )
    return found


NEWEST_X = f"""Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData
    .filter(trace => trace.mode === 'lines').flatMap(trace => [...trace.x]))"""


def newest_x(page: Page) -> float:
    found: float = read(page, NEWEST_X)
    return found


def zoom(page: Page) -> None:
    draw_zoom(page)
    page.mouse.up()


def test_charts_keep_their_zoom_while_new_points_arrive(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    whole = x_range(page)
    read(page, f"document.querySelector('{LOSS} .tm-plot').dataset.mine = 'yes'")
    zoom(page)
    until(
        page,
        f"document.querySelector('{LOSS} .tm-plot')._fullLayout.xaxis.range[0] > {whole[0] + 20}",
    )
    zoomed = x_range(page)
    for come_to in ("200", "210", "220"):
        control.advance("r1")
        expect(page.locator(".tm-facts")).to_contain_text(f"{come_to} / 400")
    assert x_range(page) == pytest.approx(zoomed)
    assert read(page, f"document.querySelector('{LOSS} .tm-plot').dataset.mine") == "yes"
    loss_chart(page).dblclick()
    until(page, f"{NEWEST_X} >= 220")


COUNT_CHANGES = """
const whole = window.fetch;
window.changes = 0;
window.fetch = async (...asked) => {
  const response = await whole(...asked);
  response.clone().text().then((text) => { window.changes += text.includes('"changes":[['); });
  return response;
};
"""


def test_of_charts_that_grow_only_what_is_new_is_sent(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    page.add_init_script(COUNT_CHANGES)
    open_run(page, dashboard_url)
    for newest in (200, 210):
        control.advance("r1")
        until(page, f"{NEWEST_X} >= {newest}")
    until(page, "window.changes > 0")


def test_a_run_is_asked_for_as_its_link_is_pressed(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/")
    link = page.locator('tr[data-id="r1"] a')
    expect(link).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda made: asked.append(made.url) if "first=1" in made.url else None)
    with page.expect_request(lambda made: "first=1" in made.url):
        link.hover()
        page.mouse.down()
    page.mouse.up()
    expect(page.locator(f"{LOSS} .plot-container")).to_be_visible()
    assert len(asked) == 1


def test_a_zoom_is_read_anew_with_exact_figures_and_can_be_sent_to_others(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    figures = page.locator(f"{LOSS} .tm-panel-figures")
    expect(figures).to_be_hidden()
    zoom(page)
    expect(figures).to_contain_text("lowest")
    until(page, "location.search.includes('steps=')")
    window = parse_qs(urlsplit(page.url).query)["steps"][0]
    first, last = (int(step) for step in window.split("-"))
    assert 1 < first < last < 190
    shown = read(
        page,
        f"""document.querySelector('{LOSS} .tm-plot')._fullData
        .filter(trace => trace.mode === 'lines').flatMap(trace => [...trace.x])""",
    )
    assert min(shown) >= first
    assert max(shown) <= last
    page.goto(f"{dashboard_url}/run?run=r1&steps=40-60&axis=time")
    expect(figures).to_contain_text("21 points")
    low, high = x_range(page)
    assert "2026" in str(low)
    assert str(low) < str(high)
    loss_chart(page).dblclick()
    expect(figures).to_be_hidden()
    until(page, "!location.search.includes('steps=')")


def test_pointing_at_one_chart_tells_the_same_step_in_the_others(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    plot = loss_chart(page)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5, steps=4)
    expect(page.locator('figure[data-panel="grad_norm"] .hoverlayer .legend')).to_be_visible()


def test_one_zoom_moves_all_charts_and_a_double_click_shows_all_again(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    whole = x_range(page)
    zoom(page)
    until(
        page,
        f"document.querySelector('{LOSS} .tm-plot')._fullLayout.xaxis.range[0] > {whole[0] + 20}",
    )
    zoomed = x_range(page)
    for panel in ("grad_norm", "utilization_ratio"):
        until(
            page,
            f"""document.querySelector('figure[data-panel={panel}] .tm-plot')
            ._fullLayout.xaxis.range[0] > {whole[0] + 20}""",
        )
        assert x_range(page, panel) == pytest.approx(zoomed)
    loss_chart(page).dblclick()
    until(page, f"document.querySelector('{LOSS} .tm-plot')._fullLayout.xaxis.range[0] < 5")


def test_no_frame_is_blank_while_charts_update(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    open_run(page, dashboard_url)
    count_frames(page)
    before = newest_x(page)
    for _ in range(3):
        control.advance("r1")
        until(
            page,
            f"""Math.max(...document.querySelector('{LOSS} .tm-plot')._fullData
            .filter(trace => trace.mode === 'lines').flatMap(trace => [...trace.x])) > {before}""",
        )
        before = newest_x(page)
    seen = frames_seen(page)
    assert seen["frames"] > 30
    assert seen["blank"] == 0


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
    names: list[Any] = read(
        page,
        f"""document.querySelector('{LOSS} .tm-plot')._fullData
        .filter(trace => trace.mode === 'lines').map(trace => [trace.name, trace.line.color])""",
    )
    assert [name for name, _ in names] == ["this run", "abandoned"]
    assert names[1][1] == "#8A94A3"


def test_what_is_drawn_is_saved_and_links_between_its_nodes_are_shown(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    control.run("r1").nodes = ("node-a", "node-b")  # type: ignore[union-attr]
    log_in(page, dashboard_url, TOKEN, "/run?run=r1&section=logs&rank=2")
    expect(page.get_by_text("step 99 of rank 2")).to_be_visible()
    expect(page.locator('figure[data-panel="links-latency_ms"] .plot-container')).to_be_visible()
    for _ in range(10):  # some of them while the charts look again
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save what is drawn").click()
    assert saving.value.suggested_filename == "r1.csv"
    lines = saving.value.path().read_text().splitlines()
    assert lines[0] == "metric,rank,generation,step,at,value"
    assert any(line.startswith("loss,,1,150,") and line.endswith(",nan") for line in lines)
    assert any(line.startswith("bandwidth_bytes_per_s,3,2,190,") for line in lines)
