"""What the environment says, and which control plane and token follow from it."""

import os
from pathlib import Path

import pytest

from trainmaster.cli.backoff import Backoff
from trainmaster.cli.drill import span_of
from trainmaster.cli.settings import from_environment, home_at
from trainmaster.errors import UserError


def test_the_default_control_plane_is_on_this_machine(tmp_path: Path):
    settings = from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    assert settings.control_url == "http://127.0.0.1:8700"
    assert settings.control_token is None


def test_a_home_that_is_up_says_where_its_control_plane_is(tmp_path: Path):
    settings = from_environment({"TRAINMASTER_HOME": str(tmp_path)})
    settings.home.record_process("control", os.getpid(), "http://127.0.0.1:4711")
    settings.home.write_token("secret")
    assert settings.control_url == "http://127.0.0.1:4711"
    assert settings.control_token == "secret"


def test_what_is_asked_for_wins(tmp_path: Path):
    token_file = tmp_path / "token"
    token_file.write_text("from-file\n")
    environment = {
        "TRAINMASTER_HOME": str(tmp_path),
        "TRAINMASTER_URL": "http://elsewhere:1",
        "TRAINMASTER_TOKEN_FILE": str(token_file),
    }
    settings = from_environment(environment)
    settings.home.write_token("stored")
    assert settings.control_url == "http://elsewhere:1"
    assert settings.control_token == "from-file"
    assert from_environment({**environment, "TRAINMASTER_TOKEN": "given"}).control_token == "given"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRAINMASTER_PORT", "http"),
        ("TRAINMASTER_PORT", "70000"),
        ("TRAINMASTER_DASHBOARD_PORT", "-1"),
        ("TRAINMASTER_SUPERVISE", "perhaps"),
        ("TRAINMASTER_TOKEN_FILE", "/nowhere/token"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(name, value):
    with pytest.raises(UserError, match=name):
        from_environment({name: value})


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_empty_path_is_no_state_directory_and_never_the_current_folder(path):
    with pytest.raises(UserError, match="state directory"):
        home_at(path)


def test_a_part_that_keeps_dying_waits_longer_each_time_up_to_half_a_minute():
    backoff = Backoff()
    assert [backoff.delay_s(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_good_stretch_is_forgiven():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_s(0.1)
    assert backoff.delay_s(61.0) == 1


@pytest.mark.parametrize(
    ("text", "fault", "span"),
    [
        ("10s", "hang", {"duration_s": 10.0}),
        ("2min", "slow", {"duration_s": 120.0}),
        ("5steps", "nan", {"steps": 5}),
        ("1step", "spike", {"steps": 1}),
    ],
)
def test_spans_of_drills(text, fault, span):
    assert span_of(text, fault) == span


@pytest.mark.parametrize(
    ("text", "fault"), [("10s", "nan"), ("5steps", "kill"), ("0s", "hang"), ("1.5steps", "nan")]
)
def test_a_span_that_a_fault_cannot_have_is_refused(text, fault):
    with pytest.raises(UserError, match="--for"):
        span_of(text, fault)
