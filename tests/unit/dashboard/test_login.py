from datetime import UTC, datetime
from pathlib import Path

import pytest

from dashboard.login import lifetime_s, local_path
from dashboard.settings import Settings, read_settings
from trainmaster.errors import UserError


@pytest.mark.parametrize(
    "target",
    ["/", "/run?run=r1&lang=zh-CN", "/alerts"],
)
def test_login_leads_back_to_a_page_of_the_dashboard(target: str) -> None:
    assert local_path(target) == target


@pytest.mark.parametrize(
    "target",
    [
        None,
        "",
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "/auth/logout",
        "/run\r\nSet-Cookie: a=b",
    ],
)
def test_login_never_leads_anywhere_else(target: str | None) -> None:
    assert local_path(target) == "/"


def test_the_cookie_lives_as_long_as_the_session() -> None:
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert lifetime_s("2026-03-01T13:00:00Z", now) == 3600
    assert lifetime_s("2026-03-01T11:00:00Z", now) == 0
    assert lifetime_s(None, now) == 7 * 86400


def test_settings_come_from_the_environment() -> None:
    told = {
        "TRAINMASTER_URL": "http://control:8700",
        "TRAINMASTER_DASHBOARD_PORT": "9000",
        "TRAINMASTER_HOME": "/srv/tm",
    }
    assert read_settings(told) == Settings("http://control:8700", 9000, Path("/srv/tm"))
    assert read_settings({}) == Settings()


@pytest.mark.parametrize("port", ["http", "-1", "70000"])
def test_a_port_that_is_none_is_refused_with_the_settings_name(port: str) -> None:
    with pytest.raises(UserError, match="TRAINMASTER_DASHBOARD_PORT"):
        read_settings({"TRAINMASTER_DASHBOARD_PORT": port})
