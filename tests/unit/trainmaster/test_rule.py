import pytest
from pydantic import ValidationError

from trainmaster import document
from trainmaster.errors import SpecError
from trainmaster.rule import MAX_RULES, Rule, RuleFile, of_measured

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


@pytest.mark.parametrize(("mode", "nothing"), [("act", "it could do"), ("ask", "to ask about")])
def test_a_rule_that_may_act_or_asks_needs_something_to_do(mode, nothing):
    idle = GOOD.replace("mode: act", f"mode: {mode}").replace(
        "action: rollback, lr_factor: 0.5", ""
    )
    told = refusal(idle.replace("actions: [{}]", "actions: []"))
    assert f"mode {mode} needs actions: there is nothing" in told
    assert nothing in told


def test_one_name_for_two_rules_is_refused():
    again = GOOD.replace("rules:\n", "")
    assert "diverging" in refusal(GOOD + again)


def test_a_file_holds_so_many_rules_that_storing_them_holds_up_nobody():
    rule = {"name": "r", "metric": "loss", "when": {"condition": "above", "value": 1}}
    many = [{**rule, "name": f"r{number}"} for number in range(MAX_RULES + 1)]
    with pytest.raises(ValidationError, match="at most 1000 items"):
        RuleFile.model_validate({"rules": many})


def test_an_unknown_action_lists_the_known_ones():
    assert "rollback" in refusal(GOOD.replace("action: rollback", "action: pray"))


def test_a_misspelt_condition_and_a_bound_that_is_not_inside_are_told_where_they_stand():
    told = refusal(GOOD.replace("condition: above", "condition: abov"))
    assert "rules[0].when.condition: should be one of above, below" in told
    assert "not 'abov'; did you mean 'above'?" in told
    told = refusal(GOOD.replace("condition: above, ", ""))
    assert "rules[0].when.condition: is needed" in told
    assert "rules[0].when: clear must not" in refusal(
        GOOD.replace("value: 10", "value: 1, clear: 2")
    )


def test_metrics_that_nobody_measures_are_told_together_with_all_else():
    text = GOOD.replace("metric: loss", "metric: losss").replace("mode: act", "mode: acts")
    with pytest.raises(SpecError) as caught:
        of_measured(document.read(text))
    told = {(each.path, each.line) for each in caught.value.problems}
    assert told == {("rules[0].mode", 7), ("rules[0].metric", 4)}
    with pytest.raises(SpecError) as caught:
        of_measured(document.read(GOOD.replace("value: 10", "value: 10, metric: Loss")))
    [problem] = caught.value.problems
    assert "'Loss' is not a metric" in problem.message
    assert [rule.name for rule in of_measured(document.read(GOOD))] == ["diverging"]
