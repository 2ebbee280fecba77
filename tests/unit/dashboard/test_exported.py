from dashboard.charts.series import Series
from dashboard.exported import run_csv, runs_csv
from dashboard.tails import Wanted


def series(steps: list[int], values: list[object], **columns: list[float]) -> Series:
    told = {"generation": [1] * len(steps), "step": steps, "value": values, **columns}
    return Series.read({"columns": told})


def test_what_is_drawn_of_runs_becomes_a_table_in_which_nan_is_not_nothing() -> None:
    loss, norm = series([1, 2], [2.5, "NaN"]), series([2], [None])
    text = runs_csv(["r1"], [{"loss": loss, "grad_norm": norm}])
    assert text == "run,step,loss,grad_norm\nr1,1,2.5,\nr1,2,nan,\n"


def test_what_is_drawn_of_a_run_keeps_rank_generation_and_instant() -> None:
    told = {
        Wanted("loss"): series([1, 2], [2.5, "Infinity"], at=[0.5, float("nan")]),
        Wanted("latency_ms", 3): series([2], [None], at=[1.0]),
    }
    assert run_csv(told) == (
        "metric,rank,generation,step,at,value\n"
        "loss,,1,1,1970-01-01T00:00:00.500000+00:00,2.5\n"
        "loss,,1,2,,inf\n"
        "latency_ms,3,1,2,1970-01-01T00:00:01+00:00,\n"
    )
