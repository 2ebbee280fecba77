"""CSVs as history: what is read, what is told of it, and every answer to one that is wrong."""

from __future__ import annotations

import pytest

from control.rules import packs, sheet
from control.rules.backtest import backtest, metrics_of
from trainmaster.errors import SpecError

RULES = packs.load("default")


def read_all(text, metrics=("loss", "grad_norm", "compute_s", "applied")):
    return sheet.read("a.csv", text.splitlines(keepends=True), metrics)


def read(text):
    [told] = read_all(text)
    return told


def findings(lines):
    [history] = sheet.read("a", lines, metrics_of(RULES))
    return backtest(RULES, history)


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


def test_a_table_of_workers_is_read_by_the_names_it_has():
    told = read(",worker,gpu,time,batch_time_norm\n0,0,25,1,476\n1,1,25,1,509\n2,0,25,7,480\n")
    assert told.steps.tolist() == [1, 7]
    assert [seat.rank for seat in told.seats] == [0, 1]
    assert told.of_ranks["compute_s"].values.tolist() == [[476.0, 480.0], [509.0, 0.0]]
    assert set(told.notes) == {
        "batch_time_norm is read as compute_s.",
        "time is read as step.",
        "worker is read as rank.",
    }


def test_runs_and_sections_of_one_file_are_kept_apart():
    text = "run,section,note,iteration,lm_loss\n"
    text += "a,one,x,7000,6.4\nb,one,y,12,3\na,one,z,7010,nan\na,two,,6900,6.3\n"
    told = read_all(text)
    assert [(each.name, each.steps.tolist()) for each in told] == [
        ("a.csv (a, one)", [7000, 7010]),
        ("a.csv (b, one)", [12]),
        ("a.csv (a, two)", [6900]),
    ]
    assert str(values(told[0], "loss")) == "[6.4, nan]"
    assert all(each.notes == ("lm_loss is read as loss.",) for each in told), "nothing was redone"
    alike = read_all("run,step,loss\na,1,3\na,2,3\n")
    assert [each.name for each in alike] == ["a.csv"]
    by_rank = read_all("run,step,worker,compute_s\na,1,0,1\na,1,1,2\nb,1,1,3\n")
    assert [[seat.rank for seat in each.seats] for each in by_rank] == [[0, 1], [1]]
    many = "run,step,loss\n" + "".join(f"r{number},1,3\n" for number in range(101))
    with pytest.raises(SpecError, match="101 runs and sections"):
        read_all(many)


def test_rows_that_were_redone_do_not_count():
    told = read("step,loss\n1,5\n2,4\n3,9\n2,3\n3,2\n")
    assert told.steps.tolist() == [1, 2, 3]
    assert values(told, "loss") == [5.0, 3.0, 2.0]
    assert told.begins.tolist() == [True, True, False]
    assert told.notes == ("2 rows were redone later and do not count.",)


def test_rows_that_lie_about_are_put_in_order():
    told = read("step,loss\n3,2\n1,5\n4,1\n2,4\n")
    assert told.steps.tolist() == [1, 2, 3, 4]
    assert values(told, "loss") == [5.0, 4.0, 2.0, 1.0]
    assert told.begins.tolist() == [True, False, False, False]
    assert told.notes == ("The rows were not in the order of their steps; they were put in order.",)


def test_a_step_back_while_a_clock_goes_on_is_a_new_beginning():
    told = read("step,time_s,loss\n10,1,5\n20,2,4\n30,3,9\n15,4,3\n25,5,2\n")
    assert told.steps.tolist() == [10, 15, 25]
    assert told.notes == ("2 rows were redone later and do not count.",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column `step`"),
        ("step;loss\n1;2\n", "1: step: is needed: cells are separated by commas"),
        ("step\tloss\n1\t2\n", "1: step: is needed: cells are separated by commas"),
        (f"step,loss\n1,2\n{10**17},2\n", "3: step: must lie within 9007199254740992"),
        ("step,loss\n1e300,2\n", "2: step: must lie within 9007199254740992"),
        ("loss\n1\n", "no column `step`"),
        ("loss\n1\n", "per step and rank `step,rank,compute_s`"),
        ("time,loss\n1,2\n", "no column `step`"),
        ("worker,time,compute_s\n0,noon,2\n", "2: time: must be a whole number"),
        ("worker,step,compute_s\nw7,1,2\n", "2: worker: must be a whole number"),
        ("step,loss,loss\n1,2,3\n", "stands twice"),
        ("step,loss\n1,2\n2\n", "3: : has 1 cells"),
        ("step,loss\n1,2\nx,2\n", "3: step: must be a whole number"),
        ("step,loss\n1.5,2\n", "2: step: must be a whole number"),
        ("step,loss\n1,2\n2,many\n", "3: loss: must be a number, not 'many'"),
        ("step,at,loss\n1,noon,2\n", "2: at: must be seconds, or an instant"),
        ("step,loss@worker=1\n1,2\n", "needs @rank="),
        ("step,loss@rank=one\n1,2\n", "are numbers"),
        ("step,rank,loss@rank=1\n1,1,2\n", "goes with one row per step"),
        ("x" * 200_000 + ",step\n1,1\n", "1: : is no CSV: field larger than"),
        ("step,loss\n1," + "9" * 200_000, "is no CSV: field larger than"),
        ("step,loss@rank=0,loss@rank=00\n1,1,2\n", "loss@rank=00: is rank 0 once more"),
    ],
    ids=lambda each: each[:50],
)
def test_what_is_wrong_is_told_with_line_and_column(text, told):
    with pytest.raises(SpecError) as caught:
        read(text)
    problems = "\n".join(
        f"{each.line}: {each.path}: {each.message}" for each in caught.value.problems
    )
    assert told in problems


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "step,rank,loss\n" + "".join(f"{row},{row},1\n" for row in range(9_000)),
            "9000 rows for 9000 steps of 9000 ranks: most are gaps",
        ),
        (
            "step,rank,loss\n" + "".join(f"1,{row},1\n" for row in range(10_001)),
            "names 10001 ranks",
        ),
        ("step" + ",loss@rank=1" * 100_001 + "\n1", "100001 columns of ranks"),
    ],
    ids=["gaps", "ranks", "columns"],
)
def test_no_file_makes_a_table_much_larger_than_itself(text, told):
    with pytest.raises(SpecError, match=told):
        read(text)


def test_long_files_are_read_whole_and_a_row_far_down_is_named():
    rows = "step,loss\n" + "".join(f"{step},{step % 7}\n\n" for step in range(1, 9001))
    told = read(rows)
    assert told.steps.tolist() == list(range(1, 9001)), "empty lines are no rows"
    assert values(told, "loss") == [float(step % 7) for step in range(1, 9001)]
    with pytest.raises(SpecError) as caught:
        read(rows + "9001\n")
    assert caught.value.problems[0].line == 9002


def test_time_makes_rules_in_seconds_applicable():
    lines = ["step,at,latency_ms\n"]
    lines += [
        f"{step},2030-01-01T12:{step // 60:02}:{step % 60:02}Z,80\n" for step in range(1, 121)
    ]
    found = findings(lines)
    assert [each["rule"] for each in found["findings"]] == ["slow communication"]
    bare = [line.replace("step,at,", "step,when,") for line in lines]
    found = findings(bare)
    assert found["findings"] == []
    assert "slow communication" in found["not_applicable"]


def test_a_source_without_rows_has_no_findings():
    found = findings(["step,loss\n"])
    assert (found["steps"], found["findings"], found["per_10k_steps"]) == (0, [], 0.0)
