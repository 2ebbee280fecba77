from typing import Any

import pytest

from dashboard.charts.axis import Axis
from dashboard.charts.happenings import (
    ROWS,
    actions,
    alerts,
    checkpoints,
    generations,
    happenings_panel,
)
from dashboard.charts.series import OPEN_END
from tests.unit.dashboard.test_panels import WORDS

LABELS = {row: row for row in ROWS}


def attempt(generation: int, first: int | None, last: int | None) -> dict[str, Any]:
    return {"generation": generation, "first_step": first, "last_step": last, "cause": "<b>"}


def panel(happened: list[Any]) -> dict[str, Any]:
    return happenings_panel(
        "happened",
        "What happened",
        happened,
        labels=LABELS,
        words={**WORDS, "time": "time", "tokens": "tokens"},
        axis=Axis(),
        extent=(1, 100),
        revision="r1",
    )


def test_a_generation_reaches_as_far_as_it_survives_and_what_it_left_is_apart() -> None:
    found = generations(
        [attempt(1, 1, 160), attempt(2, 101, 190), attempt(3, None, None)],
        {1: 100, 2: OPEN_END},
        "{generation}: {cause}",
    )
    assert [(each.row, each.step, each.until) for each in found] == [
        ("generation", 1, 100),
        ("abandoned", 101, 160),
        ("generation", 101, 190),
    ]
    texts = panel(found)["traces"][0]["text"]
    assert texts[0].startswith("1: &lt;b&gt;"), "text from outside is never read as HTML"


def test_alerts_actions_and_checkpoints_stand_in_lines_of_their_own() -> None:
    incident = {
        "rule": "spike",
        "first_bad_step": 40,
        "actions": [{"action": "rollback", "generation": 1, "last_bad_step": 44}],
    }
    told = [
        *alerts([{"rule": "spike", "first_bad_step": 40, "state": "firing"}, {"state": "pending"}]),
        *actions([incident]),
        *checkpoints(
            [{"id": "c1", "step": 30, "generation": 1, "state": "trusted"}], {"trusted": "fine"}
        ),
    ]
    traces = panel(told)["traces"]
    assert [(trace["y"], trace["x"]) for trace in traces] == [
        (["alert"], [40.0]),
        (["action"], [44.0]),
        (["checkpoint"], [30.0]),
    ]
    assert "fine" in traces[2]["text"][0]
    assert len({trace["marker"]["symbol"][0] for trace in traces}) == 3, "never colour alone"


@pytest.mark.parametrize("happened", [[], [*alerts([])]])
def test_where_nothing_happened_that_is_said(happened: list[Any]) -> None:
    assert panel(happened)["note"] == WORDS["empty"]
