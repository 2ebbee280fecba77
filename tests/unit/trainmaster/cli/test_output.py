"""What people read: tables, quantities, and text that a terminal must not obey."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cli.output import Output, shown
from trainmaster.cli.quantities import bytes_text, clock_text, duration_text, number_text


@given(st.text())
def test_no_text_can_steer_a_terminal(text):
    kinds = {unicodedata.category(char) for char in shown(text) if char not in "\n\t\u200c\u200d"}
    assert kinds.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})


def test_names_in_any_script_stay_readable():
    assert shown("训练 π 🚂") == "训练 π 🚂"
    assert shown("a\x1b[31mb") == "a\\x1b[31mb"


def test_a_table_for_a_pipe_has_no_colours_and_cuts_nothing():
    out = io.StringIO()
    long = "because " * 30
    Output(stdout=out).table(["RUN", "BECAUSE"], [["[red]r1[/red]", long.strip()]], "-")
    assert "\x1b" not in out.getvalue()
    assert "[red]r1[/red]" in out.getvalue()
    assert long.strip() in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), ("NaN", "NaN"), (2.34567, "2.346"), (123456.7, "123,457")]
)
def test_numbers(value, text):
    assert number_text(value) == text


def test_instants_are_told_in_utc_to_the_second():
    assert clock_text("2026-11-30T08:13:54.123+00:00") == "2026-11-30 08:13:54Z"
    assert clock_text(None) == "-"
