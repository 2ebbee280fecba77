import json
from typing import Any

from dashboard.data import Query, Reader
from dashboard.figures import Figures, figures, figures_text
from dashboard.i18n import translator
from dashboard.tails import Wanted
from dashboard.windows import MOST_KEPT, Stretches, read_stretches

WANTED = [Wanted("loss", all_generations=True), Wanted("bubble_ratio", 1, points=200)]


class Control:
    """Answers with one point at the first step of what is asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, path: str, query: Query, body: str) -> Any:
        asked = json.loads(body)
        self.asked.append(asked)
        columns = {"generation": [1], "step": [asked["after_step"] + 1], "value": [2.0]}
        return {
            "series": [{"columns": columns, "statistics": {"count": 1}} for _ in asked["series"]]
        }


def test_a_window_is_read_for_itself_and_kept_once_it_cannot_change() -> None:
    control, kept = Control(), Stretches()
    reader, run = Reader(control, {}), {"id": "r1", "generation": 1, "step": 100}
    first = read_stretches(reader, kept, run, WANTED, (11, 20))
    assert [each.series.steps.tolist() for each in first] == [[11], [11]]
    assert [(each["after_step"], each["until_step"]) for each in control.asked] == [(10, 20)] * 2
    assert [each["points"] for each in control.asked] == [2000, 200]
    assert read_stretches(reader, kept, run, WANTED, (11, 20)) is first
    for low in range(MOST_KEPT):
        read_stretches(reader, kept, run, WANTED, (low + 1, 50))
    assert read_stretches(reader, kept, run, WANTED, (11, 20)) is not first


def test_a_window_that_still_grows_or_whose_lineage_changes_is_read_again() -> None:
    control, kept = Control(), Stretches()
    reader = Reader(control, {})
    for run in (
        {"id": "r1", "generation": 1, "step": 20},
        {"id": "r1", "generation": 1, "step": 20},
        {"id": "r1", "generation": 1, "step": 30},
        {"id": "r1", "generation": 2, "step": 30},
    ):
        read_stretches(reader, kept, run, WANTED, (11, 20))
    assert len(control.asked) == 4 * 2


def told(count: int, mean: float, low: float, high: float, bad: int = 0) -> dict[str, Any]:
    extremes = {"min": low, "min_step": 3, "max": high, "max_step": 5}
    return {"count": count, "mean": mean, "std": 0.5, "non_finite": bad, **extremes}


def test_figures_of_several_ranks_are_of_all_their_points_and_name_the_extremes() -> None:
    found = figures([(0, told(3, 1.0, 0.5, 2.0)), (1, told(1, 5.0, 5.0, 5.0, bad=2))], scale=2.0)
    assert found == Figures(4, 2, 4.0, None, 1.0, 3, 10.0, 5, 0, 1)
    said = figures_text(found, translator("en"))
    assert said == (
        "4 points · lowest 1 (step 3), rank 0 · mean 4 · highest 10 (step 5), rank 1 · 2 not finite"
    )


def test_of_nothing_measured_there_are_no_figures() -> None:
    assert figures([(None, {"count": 0, "non_finite": 3})]) is None
    assert figures_text(None, translator("en")) == ""
