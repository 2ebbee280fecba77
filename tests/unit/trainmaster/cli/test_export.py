"""Points of a run as files of other programs: nothing lost, nothing invented."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainmaster.cli.command import Outcome, command
from trainmaster.cli.point_files import Points, write_csv

AT = 1_700_000_000.25
SERIES = {
    "loss": [(1, 1, 2.5), (1, 2, "NaN"), (2, 2, 0.1)],
    "grad_norm": [(1, 1, "Infinity"), (1, 2, None), (2, 2, 1e-300)],
}


def answer(query: dict[str, Any]) -> dict[str, Any]:
    told = [
        row
        for row in SERIES.get(query["metric"], [])
        if query.get("after_step", 0) < row[1] <= query["until_step"]
    ]
    columns = {
        "generation": [row[0] for row in told],
        "step": [row[1] for row in told],
        "value": [row[2] for row in told],
        "at": [AT + row[1] for row in told],
    }
    return {"columns": columns, "rolled_up": False}


def export(*words: object, last_step: int = 2) -> Outcome:
    run = {"attempts": [{"last_step": None}, {"last_step": last_step}]}
    answers = {"GET /v1/runs/r1": [run], "GET /v1/runs/r1/series": [answer]}
    return command("export", "r1", *words, answers=answers)


def test_csv_keeps_what_was_not_measured_apart_from_what_is_no_number(tmp_path: Path):
    out = tmp_path / "points.csv"
    done = export("--format", "csv", "--out", out, "--json")
    assert done.status == 0, done.stderr
    assert (done.json["rows"], done.json["metrics"]) == (3, ["loss", "grad_norm"])
    assert done.json["exact"] is True
    assert out.read_text() == (
        "generation,step,at,loss,grad_norm\n"
        "1,1,2023-11-14T22:13:21.250000Z,2.5,inf\n"
        "1,2,2023-11-14T22:13:22.250000Z,nan,\n"
        "2,2,2023-11-14T22:13:22.250000Z,0.1,1e-300\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["points.csv"]


def test_a_long_run_is_read_in_pages_and_each_page_whole(tmp_path: Path):
    done = export(
        *("--format", "csv", "--out", tmp_path / "a.csv", "--metric", "loss"), last_step=250_000
    )
    assert done.status == 0, done.stderr
    asked = [query for _, path, query in done.api.asked if path.endswith("/series")]
    assert [each["until_step"] for each in asked] == [100_000, 200_000, 300_000]
    assert [each.get("after_step", 0) for each in asked] == [0, 100_000, 200_000]
    with (tmp_path / "a.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3


def test_parquet_has_null_and_nan(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "points.parquet"
    assert export("--format", "parquet", "--out", out).status == 0
    found = parquet.read_table(out).to_pydict()
    assert found["step"] == [1, 2, 2]
    assert found["grad_norm"] == [math.inf, None, 1e-300]
    assert math.isnan(found["loss"][1])
    assert found["at"][0].timestamp() == AT + 1


def test_tensorboard_has_a_folder_for_each_generation(tmp_path: Path):
    record = pytest.importorskip("tensorboardX.record_writer")
    assert record
    out = tmp_path / "logs"
    assert export("--format", "tensorboard", "--out", out).status == 0
    assert sorted(path.name for path in out.iterdir()) == ["g1", "g2"]
    [events] = (out / "g1").iterdir()
    assert b"loss" in events.read_bytes()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--format", "csv", "--out", "{tmp}"), "is a folder"),
        (("--format", "csv", "--out", "{tmp}/none/a.csv"), "does not exist"),
        (("--format", "tensorboard", "--out", "{tmp}/full"), "not an empty folder"),
        (("--format", "csv", "--out", "{tmp}/a.csv", "--metric", "los"), "'los' is not a metric"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_fetched(
    tmp_path: Path, words: tuple[str, ...], named: str
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    done = export(*(word.format(tmp=tmp_path) for word in words))
    assert done.status == 2
    assert named in done.stderr
    assert done.api.asked == []


def test_a_run_without_points_leaves_no_file(tmp_path: Path):
    done = export("--format", "csv", "--out", tmp_path / "a.csv", "--metric", "lr")
    assert done.status == 2
    assert "no points" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_finished_does_not_take_the_place_of_the_old_one(tmp_path: Path):
    out = tmp_path / "a.csv"
    out.write_text("old")
    points = Points()
    points.add(
        "loss", {"generation": [1], "step": [1], "value": [1.0], "at": [1e300]}, is_thinned=False
    )
    with pytest.raises((OverflowError, ValueError)):
        write_csv(points, out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]
