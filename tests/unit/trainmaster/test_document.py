import math
import time

import pytest

from trainmaster import document
from trainmaster.errors import SpecError
from trainmaster.spec import RunSpec

GOOD = """\
name: alpha
workload: worker.workloads.byte_gpt:workload
train:
  steps: 10
  global_batch: 8
"""


def problems(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(SpecError) as caught:
        document.parse(RunSpec, text)
    return [(each.line, each.path, each.message) for each in caught.value.problems]


def test_a_spec_with_three_faults_names_all_three_with_path_and_line():
    text = GOOD.replace("steps: 10", "stpes: 10").replace("8", "true") + "rulez: x\n"
    found = {path: (line, message) for line, path, message in problems(text)}
    assert found["train.steps"][1] == "is needed"
    assert found["train.stpes"] == (4, "is not a known key; did you mean 'steps'?")
    assert found["train.global_batch"] == (5, "should be a valid integer, not True")
    assert found["rulez"] == (6, "is not a known key; did you mean 'rules'?")


def test_a_key_twice_names_both_lines():
    assert problems(GOOD + "name: beta\n") == [
        (6, "name", "stands twice, on lines 1 and 6; keep one")
    ]


@pytest.mark.parametrize("value", ["0", "-5", '"10"', "10.5", "true", "1e10", "null"])
def test_an_interval_that_is_no_count_of_steps_is_refused(value):
    [(line, path, _)] = problems(GOOD + f"checkpoint: {{every_steps: {value}}}\n")
    assert (line, path) == (6, "checkpoint.every_steps")


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_a_number_that_is_not_finite_is_refused(value):
    [(_, path, message)] = problems(GOOD + f"recovery: {{unreachable_after_s: {value}}}\n")
    assert path == "recovery.unreachable_after_s"
    assert "finite" in message or "greater" in message


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "a: [", "\0", "!!python/object:os.system x", "? [a]\n: b"]
)
def test_what_is_not_a_mapping_is_refused_in_a_sentence(text):
    assert problems(text)


@pytest.mark.parametrize("value", [".nan", "{b: [1.0, -.inf]}", "1e400"])
def test_a_parameter_that_json_would_lose_is_refused_by_name(value):
    [(_, path, message)] = problems(GOOD + f"params: {{a: {value}, c: 1.0}}\n")
    assert path == "params"
    assert message.startswith("a: must be finite")


@pytest.mark.parametrize(
    "value",
    [
        '"\\0"',
        '"\\ud800"',
        '{"a\\0": 1}',
        "!!binary aGk=",
        "!!timestamp 2020-01-01",
        *(f"!!{tag} x" for tag in ("bool", "int", "float", "timestamp")),
        "!!binary é",
    ],
)
def test_what_a_tag_or_an_escape_smuggles_in_is_refused(value):
    with pytest.raises(SpecError):
        document.read(f"params: {{a: {value}}}")


def test_an_alias_bomb_is_refused_at_once():
    levels = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    levels += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    began = time.process_time()
    [(_, _, message)] = problems("\n".join(levels))
    assert "more than" in message
    assert time.process_time() - began < 5


def test_scientific_numbers_without_a_point_are_numbers():
    value = document.read("lr: 3e-4\nn: 1E5\ns: '3e-4'\ndate: 2026-01-01").value
    assert value == {"lr": 3e-4, "n": 1e5, "s": "3e-4", "date": "2026-01-01"}
    assert math.isclose(value["lr"], 3e-4)


def test_two_branches_of_one_value_make_one_problem():
    [(_, path, message)] = problems(GOOD + "checkpoint: {every_steps: often}\n")
    assert path == "checkpoint.every_steps"
    assert "or" in message


def test_a_wrong_key_inside_an_alternative_is_the_only_problem():
    assert problems(GOOD + "parallel: {replcas: 2}\n") == [
        (6, "parallel.replcas", "is not a known key; did you mean 'replicas'?")
    ]


@pytest.mark.parametrize("word", ["off", "'off'", "false"])
def test_memory_can_be_switched_off_in_a_bare_word(word):
    spec = document.parse(RunSpec, GOOD + f"checkpoint: {{memory: {word}}}\n")
    assert spec.checkpoint.memory == "off"


@pytest.mark.parametrize("value", ["[]", "{}", "[fp32]", "{fp32: 1}"])
def test_a_collection_where_a_word_is_wanted_is_refused_by_name(value):
    [(line, path, message)] = problems(GOOD + f"checkpoint: {{when_busy: {value}}}\n")
    assert (line, path) == (6, "checkpoint.when_busy")
    assert "'wait' or 'skip'" in message


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "a\\b", "..", "", "  ", "x\0", "n" * 300, "a\nb", "a\u202eb", "a\ud800"]
)
def test_names_that_are_paths_or_cannot_be_shown_are_refused(name):
    with pytest.raises(SpecError) as caught:
        document.validate(RunSpec, document.Document({**document.read(GOOD).value, "name": name}))
    assert caught.value.problems[0].path == "name"


@pytest.mark.parametrize("name", ["run 🚂", "训练", "<b>x", "{{ $labels.instance }}"])
def test_strange_but_showable_names_are_kept_as_they_are(name):
    spec = document.validate(
        RunSpec, document.Document({**document.read(GOOD).value, "name": name})
    )
    assert spec.name == name


def test_set_path_makes_mappings_on_the_way_and_refuses_to_cross_a_value():
    value = document.read(GOOD).value
    document.set_path(value, "train.optimizer.lr", 0.1)
    assert value["train"]["optimizer"] == {"lr": 0.1}
    with pytest.raises(SpecError, match="not a mapping"):
        document.set_path(value, "name.first", "x")


def test_problems_found_later_get_the_line_of_their_path():
    from trainmaster.errors import Problem

    read = document.read(GOOD)
    error = document.with_lines(SpecError([Problem("train.optimizer.lr", "is odd")]), read)
    assert error.problems[0].line == 3


@pytest.mark.parametrize(
    ("train", "parallel", "said"),
    [
        ("optimizer: {name: adafactor}", "zero: 1", "needs zero 0 and tensor 1, not 1 and 1"),
        ("batch_ramp_steps: 4", "replicas: 2", "sync_every, which is 1: give it a larger one"),
    ],
)
def test_what_training_asks_of_the_layout_is_told_where_the_layout_stands(train, parallel, said):
    text = f"{GOOD}  {train}\nparallel:\n  {parallel}\n"
    [(line, path, message)] = problems(text)
    assert (line, path) == (7, "parallel")
    assert said in message


def test_a_path_may_lead_through_a_list():
    value = {"of": [{"above": 1}, {"above": 2}]}
    document.set_path(value, "of.1.above", 3)
    assert value == {"of": [{"above": 1}, {"above": 3}]}
    with pytest.raises(SpecError, match="none of the 2 items"):
        document.set_path(value, "of.2.above", 3)


@pytest.mark.parametrize("value", ["0x" + "f" * 10_000, "0b" + "1" * 20_000, "1:" * 3000 + "1"])
@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("priority: {}", "priority"),
        ("params: {{a: {}}}", "params.a"),
        ("parallel: {{layers: [[0, {}]]}}", "parallel.layers[0][1]"),
    ],
)
def test_a_number_that_no_text_can_tell_is_refused_by_name(value, line, path):
    [(_, where, message)] = problems(GOOD + line.format(value) + "\n")
    assert (where, message) == (path, "is a whole number of more than 10000 bits")


def test_a_long_value_is_told_in_part():
    [(_, path, message)] = problems(GOOD + f"data: {{source: {'x' * 100_000}}}\n")
    assert path == "data.source"
    assert len(message) < 2100
    assert message.endswith("is none of text:stdlib, text:PATH, tokens:PATH, workload")


def test_counts_that_no_float_tells_apart_are_refused():
    [(_, path, message)] = problems(GOOD + f"recovery: {{max_restarts: {10**30}}}\n")
    assert (path, "9007199254740992" in message) == ("recovery.max_restarts", True)
