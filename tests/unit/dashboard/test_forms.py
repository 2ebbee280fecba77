import pytest
import yaml

from dashboard.forms import Field, as_text, at, changed, fields_of
from dashboard.i18n import catalogue
from dashboard.views import rule_form, spec_form
from trainmaster.document import parse
from trainmaster.plan import ParallelAsk
from trainmaster.rule import For, Rule
from trainmaster.spec import CheckpointSpec, OptimizerSpec, RunSpec

RULE = {
    "name": "spike",
    "metric": "loss",
    "when": {"condition": "robust_z", "above": 6.0},
    "actions": [{"action": "rollback", "lr_factor": 0.5}, {"action": "stop"}],
}


def named(fields: list[Field]) -> dict[str, Field]:
    return {field.name: field for field in fields}


def test_a_field_knows_its_kind_its_choices_and_what_holds_without_it() -> None:
    rule = named(fields_of(Rule))
    assert rule["severity"].choices == ("info", "warning", "critical")
    assert rule["severity"].default == "warning"
    assert (rule["name"].kind, rule["name"].optional) == ("text", False)
    assert rule["enabled"].kind == "flag"
    assert "when" not in rule
    assert "actions" not in rule
    spec = named(fields_of(OptimizerSpec))
    assert (spec["lr"].kind, spec["grad_clip"].optional) == ("number", True)
    assert named(fields_of(CheckpointSpec))["every_steps"].kind == "text"
    assert named(fields_of(ParallelAsk))["zero"].choices == (0, 1, 2, 3)


def test_fields_come_in_the_order_in_which_they_are_asked_for() -> None:
    assert [each.name for each in fields_of(For, "seconds", "steps")] == ["seconds", "steps"]


def test_a_value_is_changed_without_touching_the_document_before() -> None:
    new = changed(RULE, "when.above", 4.0)
    assert at(new, "when.above") == 4.0
    assert at(RULE, "when.above") == 6.0
    assert at(new, "actions.1.action") == "stop"


def test_nothing_takes_a_value_away_and_the_mapping_that_it_leaves_empty() -> None:
    assert "clear" not in changed(RULE, "when.clear", None)["when"]
    spec = {"name": "a", "checkpoint": {"every_steps": 5}}
    assert changed(spec, "checkpoint.every_steps", None) == {"name": "a"}


@pytest.mark.parametrize("document", [RULE, {"name": "x"}, {"a": {"b": [{"c": 1}, []]}}])
def test_a_document_written_as_text_reads_as_itself(document: dict[str, object]) -> None:
    assert yaml.safe_load(as_text(document)) == document


def test_short_values_stand_on_one_line() -> None:
    assert as_text(RULE).splitlines()[2] == "when: {condition: robust_z, above: 6.0}"


@pytest.mark.parametrize("name", list(rule_form.CONDITIONS))
def test_each_condition_can_be_begun_with_in_the_form(name: str) -> None:
    when = {"condition": name, **rule_form.NEEDED.get(name, {})}
    peers = name == "relative_to_best_peer"
    document = {"name": "a", "metric": "loss", "scope": "rank" if peers else "run", "when": when}
    parse(Rule, as_text(document))


def test_every_label_and_choice_of_a_form_has_a_word() -> None:
    words = catalogue("en")
    models = [*rule_form.CONDITIONS.values(), *rule_form.ACTIONS.values(), For]
    fields = [each for model in models for each in fields_of(model)]
    fields += fields_of(Rule, *rule_form.HEAD, *rule_form.REST)
    fields += [each for _, model, names in spec_form.GROUPS for each in fields_of(model, *names)]
    fields += fields_of(ParallelAsk, *spec_form.PARALLEL)
    told = {"condition", "action", "params"}
    missing = {each.name for each in fields if f"field.{each.name}" not in words} - told
    assert missing == set()
    of_rules = [*rule_form.CONDITIONS, *rule_form.ACTIONS]
    assert [name for name in of_rules if f"choice.{name}" not in words] == []


def test_the_examples_are_specs() -> None:
    for name in ("stdlib_gpt", "one_process", "planned", "llama_bytes"):
        parse(RunSpec, (spec_form.EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
