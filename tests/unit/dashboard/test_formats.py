from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from dashboard.formats import Formats, instant, number, ratio_of, size
from dashboard.i18n import translator

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        (0, "0"),
        (12345, "12,345"),
        (2.34567, "2.346"),
        (10432.7, "10,433"),
        (9999.7, "10,000"),
        (9999.4, "9999"),
        (1e-5, "1e-05"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_are_short_and_say_what_they_are(value: object, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (21_400_000, "20.4 MiB")],
)
def test_sizes_have_binary_units(num_bytes: int | None, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "english", "chinese"),
    [
        (0.4, "0 s", "0 秒"),
        (-3, "0 s", "0 秒"),
        (75, "1 min 15 s", "1 分 15 秒"),
        (7500, "2 h 5 min", "2 小时 5 分"),
        (200_000, "2 d 7 h", "2 天 7 小时"),
        (None, "–", "–"),
    ],
)
def test_durations_have_at_most_two_units(
    seconds: float | None, english: str, chinese: str
) -> None:
    assert Formats(translator("en")).duration(seconds) == english
    assert Formats(translator("zh-CN")).duration(seconds) == chinese


def test_times_are_told_in_the_readers_zone_with_the_day_if_it_is_another() -> None:
    formats = Formats(translator("en"), ZoneInfo("Asia/Shanghai"))
    assert formats.clock(NOW, NOW) == "20:00:00"
    assert formats.clock(NOW - timedelta(days=2), NOW) == "2026-02-27 20:00"
    assert formats.clock(None, NOW) == "–"


def test_instants_are_read_with_their_zone() -> None:
    assert instant("2026-03-01T12:00:00Z") == NOW
    assert instant(None) is None


def test_progress_is_within_0_and_1_and_unknown_without_a_target() -> None:
    assert ratio_of(50, 100) == 0.5
    assert ratio_of(150, 100) == 1.0
    assert ratio_of(None, 100) is None
    assert ratio_of(5, None) is None
