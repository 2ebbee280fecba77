"""A step drawn with letters."""

from __future__ import annotations

from trainmaster.cli.gantt import chart


def bar(stage: int, kind: str, start_s: float, end_s: float, pipeline: int = 0):
    return {
        "pipeline": pipeline,
        "stage": stage,
        "kind": kind,
        "micro_batch": 0,
        "start_s": start_s,
        "end_s": end_s,
    }


def test_each_stage_is_a_row_and_time_goes_to_the_right():
    bars = [bar(0, "F", 0, 1), bar(1, "F", 1, 2), bar(1, "B", 2, 4), bar(0, "B", 4, 6)]
    lines = chart({"bars": bars, "complete": True}, 8.0, width=8)
    assert lines[0] == "  0   0  F...BB.."
    assert lines[1] == "  0   1  .FBB...."
    assert "a column is 1 s" in lines[2]


def test_a_column_is_what_takes_most_of_it():
    bars = [bar(0, "F", 0, 0.3), bar(0, "B", 0.3, 1.0), bar(0, "F", 1.0, 1.2)]
    assert chart({"bars": bars}, 2.0, width=2)[0] == "  0   0  B."


def test_what_cannot_be_drawn_is_told():
    assert "too many actions" in chart({"bars": [], "complete": False}, 1.0)[0]
    lines = chart({"bars": [bar(0, "F", 0, 1, pipeline=3)], "complete": False}, 1.0, width=4)
    assert lines[0] == "  3   0  FFFF"
    assert "left out" in lines[-1]
