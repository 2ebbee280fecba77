"""Rules tried without a control plane: one document in, one out."""

from __future__ import annotations

import io
import json

from control.tryout import main

RULES = """
rules:
  - name: high
    metric: loss
    when: {condition: above, value: 4}
tests:
  - {rule: high, series: {loss: [1, 5]}, expect: {fired_step: 2}}
"""


def asked(question):
    target = io.StringIO()
    status = main(io.StringIO(json.dumps(question)), target)
    return status, json.loads(target.getvalue())


def source(path):
    return {"name": path.name, "path": str(path)}


def test_a_pack_and_a_file_are_tried_on_csvs_in_order(tmp_path):
    for name, loss in (("a.csv", 5), ("b.csv", 3)):
        (tmp_path / name).write_text(f"step,loss\n1,3\n2,{loss}\n")
    sources = [source(tmp_path / name) for name in ("a.csv", "b.csv")]
    status, told = asked({"rules": RULES, "sources": sources})
    assert status == 0
    assert [[(each["source"], len(each["findings"])) for each in found] for found in told] == [
        [("a.csv", 1)],
        [("b.csv", 0)],
    ]
    status, told = asked({"rules": None, "pack": "default", "sources": sources})
    assert [[each["findings"] for each in found] for found in told] == [[[]], [[]]]


def test_several_runs_in_one_file_are_told_apart(tmp_path):
    rows = "run,step,loss\na,1,3\na,2,3\nb,1,3\nb,2,5\n"
    (tmp_path / "logs.csv").write_text(rows)
    status, told = asked({"rules": RULES, "sources": [source(tmp_path / "logs.csv")]})
    assert status == 0
    [found] = told
    assert [(each["source"], each["steps"], len(each["findings"])) for each in found] == [
        ("logs.csv (a)", 2, 0),
        ("logs.csv (b)", 2, 1),
    ]


def test_the_tests_of_a_file_are_run():
    assert asked({"test": RULES}) == (0, {"tests": 1, "failed": []})
    status, told = asked({"test": RULES.replace("fired_step: 2", "fired_step: null")})
    assert (status, told["failed"]) == (0, ["test 1: 'high' fired at 2, expected at None"])


def test_what_is_wrong_is_told_with_its_source_line_and_path(tmp_path):
    (tmp_path / "a.csv").write_text("step,loss\n1,many\n")
    path, gone = source(tmp_path / "a.csv"), source(tmp_path / "gone.csv")
    for question, where in (
        ({"rules": RULES, "sources": [path]}, ("a.csv", 2, "loss")),
        ({"rules": RULES, "sources": [gone]}, ("gone.csv", None, "")),
        ({"test": RULES.replace("above", "over")}, ("", 5, "rules[0].when.condition")),
        ({"rules": None, "pack": "nobody's", "sources": [path]}, ("", None, "")),
    ):
        status, told = asked(question)
        assert status == 2
        [problem] = told["problems"]
        assert (problem["source"], problem["line"], problem["path"]) == where
