"""`trainmaster rules`: files in, one value changed at a time, nothing lost between two who edit."""

from pathlib import Path

from tests.unit.trainmaster.cli.command import command
from trainmaster.errors import ConflictError, Problem, SpecError

RULE = {
    "name": "loss too high",
    "metric": "loss",
    "when": {"condition": "above", "value": 4.0},
    "version": 3,
}
SHOW = "GET /v1/rules/loss%20too%20high"
PUT = "PUT /v1/rules/loss%20too%20high"
FILE = """\
rules:
  - name: loss too high
    metric: loss
    when: {condition: above, value: 4.0}
    for: {steps: 3}
"""


def test_a_rule_file_is_checked_here_and_sent_whole(tmp_path: Path):
    path = tmp_path / "rules.yaml"
    path.write_text(FILE)
    done = command("rules", "add", path, answers={"POST /v1/rules": [[RULE]]})
    assert done.status == 0, done.stderr
    [sent] = done.api.bodies("POST", "/v1/rules")
    assert [(rule["name"], rule["for"]) for rule in sent["rules"]] == [
        ("loss too high", {"steps": 3})
    ]


def test_problems_in_a_rule_file_have_their_lines_wherever_they_are_found(tmp_path: Path):
    path = tmp_path / "rules.yaml"
    path.write_text(FILE.replace("above", "sideways"))
    done = command("rules", "add", path)
    assert done.status == 2
    assert done.stderr.startswith(f"{path}:4: rules[0].when")
    path.write_text(FILE)
    refusal = SpecError([Problem("rules[0].metric", "'loss' is not a metric")])
    done = command("rules", "add", path, answers={"POST /v1/rules": [refusal]})
    assert done.stderr == f"{path}:3: rules[0].metric: 'loss' is not a metric\n"


def test_an_edit_sends_back_the_version_that_was_read():
    words = ["rules", "edit", "loss too high", "--set", "when.value=5", "--set", "mode=act"]
    done = command(*words, "--json", answers={SHOW: [RULE], PUT: [lambda body: body]})
    assert done.status == 0, done.stderr
    assert done.json["when"] == {"condition": "above", "value": 5}
    assert (done.json["mode"], done.json["version"]) == ("act", 3)


def test_an_edit_of_what_somebody_else_changed_meanwhile_is_refused():
    answers = {SHOW: [RULE], PUT: [ConflictError("the rule has changed: look again")]}
    done = command("rules", "edit", "loss too high", "--set", "mode=act", answers=answers)
    assert done.status == 4


def test_an_edit_without_a_change_is_bad_usage():
    assert command("rules", "edit", "loss too high").status == 2


def test_a_value_that_a_rule_cannot_have_is_told_with_its_path():
    refusal = SpecError([Problem("mode", "should be 'observe' or 'act', not 'ponder'")])
    words = ["rules", "edit", "loss too high", "--set", "mode=ponder"]
    done = command(*words, answers={SHOW: [RULE], PUT: [refusal]})
    assert done.status == 2
    assert "mode: should be 'observe' or 'act'" in done.stderr
