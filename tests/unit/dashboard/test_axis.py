from datetime import timedelta, timezone
from typing import Any

import pytest

from dashboard.charts.axis import Axis, AxisKind, read_window, since_first, window_text
from dashboard.charts.series import Series
from tests.unit.dashboard.test_panels import unpacked

EAST = timezone(timedelta(hours=8))
REFERENCE = Series.read(
    {
        "columns": {
            "generation": [1, 1, 1, 2, 2],
            "step": [10, 20, 30, 25, 35],
            "value": [1.0] * 5,
            "at": [100.0, 200.0, 300.0, 400.0, 500.0],
            "tokens": [1000.0, 2000.0, 3000.0, 2500.0, 3500.0],
        }
    }
)


def axis(kind: AxisKind) -> Axis:
    return Axis(kind, REFERENCE, EAST)


def test_times_are_those_of_the_readers_clock() -> None:
    hours = 8 * 3600
    assert unpacked(axis("time").packed(REFERENCE)) == [
        (each + hours) * 1000 for each in (100, 200, 300, 400, 500)
    ]


@pytest.mark.parametrize(
    ("kind", "generation", "place"),
    [("step", None, 30.0), ("tokens", 1, 3000.0), ("tokens", 2, 3000.0), ("tokens", 9, 3000.0)],
)
def test_a_step_stands_where_its_generation_took_it(
    kind: AxisKind, generation: int | None, place: float
) -> None:
    assert axis(kind).place(30, generation) == place


@pytest.mark.parametrize(
    ("kind", "low", "high", "steps"),
    [
        ("step", 3.2, 9.9, (4, 9)),
        ("step", 9.9, -3.0, (1, 9)),
        ("tokens", 1500, 2600.0, (10, 35)),
        ("time", "1970-01-01 08:02:30", "1970-01-01 08:04:10.5", (10, 25)),
        ("time", "1970-01-02", "1970-01-03", None),
        ("time", "1970-01-01", "1970-01-02", (10, 35)),
        ("step", "here", 3, None),
        ("step", float("nan"), 3, None),
        ("step", -9, -3, None),
    ],
)
def test_a_window_is_told_as_the_steps_that_it_shows(
    kind: AxisKind, low: Any, high: Any, steps: tuple[int, int] | None
) -> None:
    surviving = REFERENCE.where((REFERENCE.steps <= 20) | (REFERENCE.generations == 2))
    assert Axis(kind, surviving, EAST).steps_within(low, high) == steps


def test_a_window_has_its_place_on_every_axis() -> None:
    assert axis("step").extent((10, 20)) == (10.0, 20.0)
    assert axis("tokens").extent((10, 20)) == (1000.0, 2000.0)
    assert axis("tokens").extent((90, 99)) is None


@pytest.mark.parametrize(
    "text", [None, "", "5", "9-5", "a-b", "-3-4", "1-²", "1-99999999999999999999"]
)
def test_an_address_that_names_no_window_shows_all(text: str | None) -> None:
    assert read_window(text) is None


def test_a_window_comes_back_from_its_address() -> None:
    assert read_window(window_text((3, 90))) == (3, 90)


def test_runs_stand_over_the_hours_since_each_began() -> None:
    def told(at: list[float]) -> Series:
        steps = list(range(1, len(at) + 1))
        columns = {"generation": [1] * len(at), "step": steps, "value": steps, "at": at}
        return Series.read({"columns": columns})

    found = since_first({"loss": told([7200.0, 9000.0]), "lr": told([7300.0, float("nan")])})
    assert found["loss"].at.tolist() == [0.0, 1800.0]
    assert found["lr"].at[0] == 100.0
    axis = Axis("elapsed", found["loss"])
    assert axis.extent((1, 2)) == (0.0, 0.5)
    assert axis.layout({"elapsed": "hours"})["title"]["text"] == "hours"
    assert since_first({"loss": told([])})["loss"].at.tolist() == []
