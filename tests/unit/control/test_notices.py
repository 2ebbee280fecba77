"""What people are told of, in which words, and what they are not told."""

from __future__ import annotations

import pytest

from control.decision import NewEvent
from control.notices import flapping, notice_of, reaches


def told(kind: str, because: str = "Because.", **data):
    return notice_of("ra1", 2, NewEvent(kind, because, data=data))


def test_a_firing_rule_is_told_with_its_severity_and_its_reason():
    found = told("alert_firing", "loss is bad", rule="r", scope="run", severity="critical")
    assert (found.title, found.body, found.severity) == ("r fires", "loss is bad", "critical")
    assert (found.about, found.channels) == ("r", None)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("checkpoint_trusted", {}),
        ("rule_acted", {"action": "rollback"}),
        ("alert_firing", {"rule": "r", "silenced": True}),
        ("alert_resolved", {"rule": "r", "silenced": True}),
    ],
)
def test_nobody_is_told_of_every_event(kind, data):
    assert told(kind, **data) is None


def test_a_rule_that_says_to_notify_names_its_channels():
    found = told("rule_acted", action="notify", channels=["ops", "night"], severity="critical")
    assert (found.channels, found.severity) == (("ops", "night"), "critical")
    assert told("rule_acted", action="notify", channels=[]).channels is None


def test_the_same_thing_has_the_same_key_and_another_thing_another():
    def one(**more):
        return told("alert_firing", rule="r", scope="run", first_bad_step=7, **more)

    assert one().key == one(value=3).key
    keys = {one().key, told("alert_firing", rule="r", scope="rank 1", first_bad_step=7).key}
    keys.add(told("alert_firing", rule="r", scope="run", first_bad_step=8).key)
    keys.add(notice_of("ra1", 3, NewEvent("alert_firing", "", data={"rule": "r"})).key)
    assert len(keys) == 4


def test_what_looks_like_a_template_is_text():
    found = told("incident_waiting", "{0} {{ x }}", rule="{__class__}", action="${HOME}")
    assert found.title == "{__class__} asks: ${HOME}?"
    assert found.body == "{0} {{ x }}"


def test_a_rule_that_flaps_is_told_once_an_hour():
    assert flapping("ra1", "r", 5, 4).key == flapping("ra1", "r", 5, 9).key
    assert flapping("ra1", "r", 5, 4).key != flapping("ra1", "r", 6, 4).key


def test_severities_have_an_order():
    assert reaches("critical", "warning")
    assert reaches("warning", "warning")
    assert not reaches("info", "warning")
