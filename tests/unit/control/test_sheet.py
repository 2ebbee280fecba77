"""CSVs as history: what is read, what is told of it, and every answer to one that is wrong."""

from __future__ import annotations

import pytest

from control.rules import packs, sheet
from control.rules.backtest import backtest, metrics_of
from trainmaster.errors import SpecError

RULES = packs.load("default")


def read(text, metrics=("loss", "grad_norm", "compute_s", "applied")):
    return sheet.read("a.csv", text.splitlines(keepends=True), metrics)


def values(history, metric):
    column = history.of_run[metric]
    return [
        float(value) if known else None
        for value, known in zip(column.values[0], column.measured[0], strict=True)
    ]


def test_empty_was_not_measured_and_nan_was():
    told = read("step,loss,note\n1,3.5,a\n2,,b\n3,nan,\n4, inf ,\n5,-Infinity,\n")
    assert values(told, "loss")[:2] == [3.5, None]
    assert str(values(told, "loss")[2:]) == "[nan, inf, -inf]"
    assert values(told, "applied") == [1.0, None, 0.0, 0.0, 0.0], "the guard would have skipped"


def test_names_that_others_use_are_read_and_said():
    told = read("iteration,lm_loss,grad_norm\n10,3.0,1.0\n20,2.9,1.0\n")
    assert told.steps.tolist() == [10, 20]
    assert values(told, "loss") == [3.0, 2.9]
    assert told.notes == ("lm_loss is read as loss.",)
    both = read("step,loss,train_loss\n1,2.0,9.0\n")
    assert values(both, "loss") == [2.0]


def test_a_mean_over_ranks_is_told_from_the_loss_of_one():
    one = read("step,loss@rank=0\n1,3.0\n")
    assert one.notes == ("The loss is that of rank 0 alone, noisier than the mean.",)
    mean = read("step,loss@rank=0,loss@rank=1\n1,3.0,5.0\n2,3.0,nan\n")
    assert str(values(mean, "loss")) == "[4.0, nan]"
    assert mean.notes == ()


def test_rows_by_rank_are_the_same_as_columns_by_rank():
    wide = read("step,compute_s@rank=0,compute_s@rank=1\n1,1.0,2.0\n2,1.1,\n")
    long = read("step,rank,compute_s\n1,0,1.0\n1,1,2.0\n2,0,1.1\n")
    for told in (wide, long):
        column = told.of_ranks["compute_s"]
        assert [seat.rank for seat in told.seats] == [0, 1]
        assert column.measured.tolist() == [[True, True], [True, False]]
        assert values(told, "compute_s") == [1.5, 1.1]


def test_rows_that_were_redone_do_not_count():
    told = read("step,loss\n1,5\n2,4\n3,9\n2,3\n3,2\n")
    assert told.steps.tolist() == [1, 2, 3]
    assert values(told, "loss") == [5.0, 3.0, 2.0]
    assert told.begins.tolist() == [True, True, False]
    assert told.notes == ("2 rows were redone later and do not count.",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column `step`"),
        ("loss\n1\n", "no column `step`"),
        ("step,loss,loss\n1,2,3\n", "stands twice"),
        ("step,loss\n1,2\n2\n", "3: : has 1 cells"),
        ("step,loss\n1,2\nx,2\n", "3: step: must be a whole number"),
        ("step,loss\n1.5,2\n", "2: step: must be a whole number"),
        ("step,loss\n1,2\n2,many\n", "3: loss: must be a number, not 'many'"),
        ("step,at,loss\n1,noon,2\n", "2: at: must be seconds, or an instant"),
        ("step,loss@worker=1\n1,2\n", "needs @rank="),
        ("step,loss@rank=one\n1,2\n", "are numbers"),
        ("step,rank,loss@rank=1\n1,1,2\n", "goes with one row per step"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_column(text, told):
    with pytest.raises(SpecError) as caught:
        read(text)
    problems = "\n".join(
        f"{each.line}: {each.path}: {each.message}" for each in caught.value.problems
    )
    assert told in problems


def test_time_makes_rules_in_seconds_applicable():
    lines = ["step,at,latency_ms\n"]
    lines += [
        f"{step},2030-01-01T12:{step // 60:02}:{step % 60:02}Z,80\n" for step in range(1, 121)
    ]
    found = backtest(RULES, sheet.read("a", lines, metrics_of(RULES)))
    assert [each["rule"] for each in found["findings"]] == ["slow communication"]
    bare = [line.replace("step,at,", "step,when,") for line in lines]
    found = backtest(RULES, sheet.read("a", bare, metrics_of(RULES)))
    assert found["findings"] == []
    assert "slow communication" in found["not_applicable"]


def test_a_source_without_rows_has_no_findings():
    found = backtest(RULES, sheet.read("a", ["step,loss\n"], metrics_of(RULES)))
    assert (found["steps"], found["findings"], found["per_10k_steps"]) == (0, [], 0.0)
