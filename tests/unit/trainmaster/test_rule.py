import pytest

from trainmaster import document
from trainmaster.errors import SpecError
from trainmaster.rule import Rule, RuleFile

GOOD = """
rules:
  - name: diverging
    metric: loss
    when: {condition: above, value: 10}
    for: {steps: 3, within: 5}
    mode: act
    actions: [{action: rollback, lr_factor: 0.5}]
"""


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        document.parse(RuleFile, text)
    return str(caught.value)


def test_a_rule_reads_back_as_it_was_written():
    [rule] = document.parse(RuleFile, GOOD).rules
    assert Rule.model_validate(rule.to_json()) == rule


def test_a_rollback_that_changes_nothing_is_refused():
    assert "must change something" in refusal(GOOD.replace("lr_factor: 0.5", "skip: false"))


@pytest.mark.parametrize("value", [".nan", ".inf"])
def test_a_threshold_must_be_finite(value):
    assert "finite" in refusal(GOOD.replace("value: 10", f"value: {value}"))


@pytest.mark.parametrize("bound", ["cooldown_s: 1e308", "max_actions: 99999999999999999999"])
def test_what_no_clock_and_no_database_can_count_is_refused(bound):
    assert bound.partition(":")[0] in refusal(f"{GOOD}    {bound}\n")


def test_within_must_hold_as_many_steps_as_are_asked_for():
    assert "within" in refusal(GOOD.replace("within: 5", "within: 2"))


def test_steps_and_seconds_exclude_each_other():
    assert "either steps" in refusal(GOOD.replace("within: 5", "seconds: 5"))


def test_one_name_for_two_rules_is_refused():
    again = GOOD.replace("rules:\n", "")
    assert "diverging" in refusal(GOOD + again)


def test_an_unknown_action_lists_the_known_ones():
    assert "rollback" in refusal(GOOD.replace("action: rollback", "action: pray"))
