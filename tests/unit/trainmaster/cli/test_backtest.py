"""`trainmaster backtest`: which source goes where, and what is told."""

from pathlib import Path

from tests.unit.trainmaster.cli.command import command

FOUND = {
    "source": "r1",
    "steps": 100,
    "findings": [],
    "destructive": 0,
    "per_10k_steps": 0.0,
    "not_applicable": ["slow rank"],
    "notes": [],
}
POST = "POST /v1/backtest"


def test_runs_are_tried_by_the_control_plane_and_told_in_the_order_asked():
    answer = [{**FOUND, "source": "r1"}, {**FOUND, "source": "r2"}]
    done = command("backtest", "default", "r2", "r1", "--json", answers={POST: [answer]})
    assert done.status == 0, done.stderr
    assert [each["source"] for each in done.json] == ["r2", "r1"]
    [sent] = done.api.bodies("POST", "/v1/backtest")
    assert sent == {"rules": "default", "runs": ["r2", "r1"], "csv": []}


def test_several_runs_in_one_file_stand_where_the_file_was_named(tmp_path: Path):
    path = tmp_path / "logs.csv"
    path.write_text("run,step,loss\na,1,3\nb,1,3\n")
    answer = [FOUND, *({**FOUND, "source": f"{path} ({run})"} for run in "ab")]
    done = command("backtest", "mine", path, "r1", "--json", answers={POST: [answer]})
    assert done.status == 0, done.stderr
    told = [each["source"] for each in done.json]
    assert told == [f"{path} (a)", f"{path} (b)", "r1"]


def test_a_rule_file_goes_with_the_runs(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("rules: []\n")
    done = command("backtest", path, "r1", answers={POST: [[FOUND]]})
    assert done.status == 0, done.stderr
    assert "r1: 100 steps, 0 findings" in done.stdout
    assert "Not applicable: slow rank." in done.stdout
    [sent] = done.api.bodies("POST", "/v1/backtest")
    assert sent["text"] == "rules: []\n"


def test_a_file_that_is_not_there_is_named():
    for words in (("default", "gone.csv"), ("gone.yaml", "r1")):
        done = command("backtest", *words)
        assert done.status == 2
        assert "there is no such file" in done.stderr
