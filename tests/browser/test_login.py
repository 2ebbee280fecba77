import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page, expect

from dashboard.login import PLOTLY_PATH
from tests.browser.conftest import log_in
from tests.fakes.control_api import CODE, TOKEN, FakeControl


def test_a_deep_link_asks_for_a_login_and_leads_back(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=r3")
    expect(page.locator("h1.tm-title")).to_have_text("done one")
    assert urlsplit(page.url).path == "/run"


def test_a_one_time_link_logs_in_once(
    page: Page,
    dashboard_url: str,
    control: FakeControl,
    open_context: Callable[..., BrowserContext],
) -> None:
    page.goto(f"{dashboard_url}/auth/login?code={CODE}")
    expect(page.locator("table.tm-table")).to_be_visible()
    assert "code" not in page.url
    second = open_context().new_page()
    second.goto(f"{dashboard_url}/auth/login?code={CODE}")
    expect(second.get_by_role("alert")).to_contain_text("A code works once")


def test_the_session_is_kept_where_no_script_can_read_it(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN)
    expect(page.locator("table.tm-table")).to_be_visible()
    (cookie,) = [each for each in page.context.cookies() if each["value"] == TOKEN]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert TOKEN not in page.evaluate("document.cookie + JSON.stringify({...localStorage})")
    assert TOKEN not in page.content()


def test_a_wrong_token_is_refused_with_a_sentence(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, "no-such-token")
    expect(page.get_by_role("alert")).to_contain_text("Neither a valid token")
    assert "no-such-token" not in [cookie["value"] for cookie in page.context.cookies()]


def test_a_control_plane_that_is_away_is_told_at_login(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    control.down = True
    log_in(page, dashboard_url, TOKEN)
    expect(page.get_by_role("alert")).to_contain_text("control plane cannot be asked")


def test_logging_out_ends_the_session(page: Page, dashboard_url: str, control: FakeControl) -> None:
    log_in(page, dashboard_url, TOKEN)
    page.get_by_role("link", name="Log out").click()
    expect(page.locator("#secret")).to_be_visible()
    assert TOKEN not in [cookie["value"] for cookie in page.context.cookies()]
    assert control.ended == [TOKEN]


def test_an_expired_session_asks_for_a_new_login_and_comes_back(
    page: Page, dashboard_url: str, control: FakeControl
) -> None:
    log_in(page, dashboard_url, TOKEN, "/run?run=r1")
    expect(page.locator("h1.tm-title")).to_have_text("stdlib-gpt")
    control.tokens.clear()
    again = page.get_by_role("link", name="Log in again").first
    expect(again).to_be_visible()
    control.tokens["another-token"] = "operator"
    again.click()
    expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    page.fill("#secret", "another-token")
    page.click("button[type=submit]")
    expect(page.locator("h1.tm-title")).to_have_text("stdlib-gpt")


def test_the_login_page_speaks_chinese(
    open_context: Callable[..., BrowserContext], dashboard_url: str, control: FakeControl
) -> None:
    page = open_context(locale="zh-CN").new_page()
    page.goto(dashboard_url)
    expect(page.get_by_role("button", name="登录")).to_be_visible()
    page.get_by_role("link", name="English").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_the_chart_script_comes_from_the_dashboard_itself(dashboard_url: str) -> None:
    request = urllib.request.Request(
        dashboard_url + PLOTLY_PATH, headers={"Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(request) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert "immutable" in response.headers["Cache-Control"]
        assert len(response.read()) < 2_000_000
