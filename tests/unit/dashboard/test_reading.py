import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dashboard.charts.series import Series
from dashboard.data import MOST_POINTS, Query, Reader
from dashboard.tails import OVERLAP_STEPS, Tails, Wanted, read_all
from trainmaster.errors import NotFoundError, UnavailableError


class FakeControl:
    """Answers from `answers`, or computes a series that has come to `step`."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.down = False
        self.generation = 1
        self.first, self.step = 1, 10
        self.values: dict[str, float] = {}

    def __call__(self, path: str, query: Query, body: str) -> Any:
        self.asked.append((path, json.loads(body) if body else dict(query)))
        if self.down:
            raise UnavailableError("out of reach")
        if path.endswith("/series"):
            return self._several(json.loads(body))
        if path not in self.answers:
            raise NotFoundError(f"{path} is not there")
        return self.answers[path]

    def _several(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"series": [self._series(each["metric"], asked) for each in asked["series"]]}

    def _series(self, metric: str, asked: dict[str, Any]) -> dict[str, Any]:
        steps = list(range(max(self.first, asked["after_step"] + 1), self.step + 1))
        shown = steps[:: -(-len(steps) // asked["points"]) or 1]
        return {
            "columns": {
                "generation": [self.generation] * len(shown),
                "step": shown,
                "value": [self.values.get(metric, 0.5)] * len(shown),
            },
            "downsampled": len(shown) < len(steps),
        }


def read_on(reader: Reader, tails: Tails, run: dict[str, Any], wanted: Wanted) -> Series:
    return read_all(reader, tails, run, [wanted])[0]


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


def run(control: FakeControl) -> dict[str, Any]:
    return {"id": "r1", "generation": control.generation}


def steps(series: Series) -> list[int]:
    return series.steps.tolist()


def test_lists_come_newest_first(control: FakeControl) -> None:
    control.answers = {"/v1/runs": [{"id": "old"}, {"id": "new"}]}
    assert [each["id"] for each in Reader(control, {}).runs()] == ["new", "old"]


def test_ids_are_quoted_into_the_path(control: FakeControl) -> None:
    with pytest.raises(NotFoundError):
        Reader(control, {}).run("../nodes?x")
    assert control.asked[0][0] == "/v1/runs/..%2Fnodes%3Fx"


def test_the_last_answer_is_shown_while_the_control_plane_is_away(control: FakeControl) -> None:
    memory: dict[Any, Any] = {}
    control.answers = {"/v1/nodes": [{"id": "n"}]}
    Reader(control, memory).nodes()
    control.down = True
    reader = Reader(control, memory)
    assert reader.nodes() == [{"id": "n"}]
    assert reader.outage is not None


def test_what_was_never_read_cannot_be_shown_while_it_is_away(control: FakeControl) -> None:
    control.down = True
    with pytest.raises(UnavailableError):
        Reader(control, {}).nodes()


def test_a_refusal_is_not_hidden_by_an_older_answer(control: FakeControl) -> None:
    memory: dict[Any, Any] = {}
    control.answers = {"/v1/runs/r1": {"id": "r1"}}
    Reader(control, memory).run("r1")
    control.answers = {}
    with pytest.raises(NotFoundError):
        Reader(control, memory).run("r1")


def test_memory_stays_small(control: FakeControl) -> None:
    memory: dict[Any, Any] = {}
    control.answers = {f"/v1/runs/r{number}": {} for number in range(500)}
    for number in range(500):
        Reader(control, memory).run(f"r{number}")
    assert len(memory) <= 200


def test_only_new_points_are_asked_for(control: FakeControl) -> None:
    tails: Tails = {}
    reader, wanted = Reader(control, {}), Wanted("loss")
    control.step = 100
    read_on(reader, tails, run(control), wanted)
    control.step = 103
    document = read_on(reader, tails, run(control), wanted)
    assert steps(document) == list(range(1, 104))
    assert control.asked[-1][1]["after_step"] == 100 - OVERLAP_STEPS


def test_newest_steps_are_read_again_for_ranks_that_were_late(control: FakeControl) -> None:
    tails: Tails = {}
    reader, wanted = Reader(control, {}), Wanted("tokens_per_s")
    read_on(reader, tails, run(control), wanted)
    control.first, control.values = 10, {"tokens_per_s": 99.0}
    series = read_on(reader, tails, run(control), wanted)
    assert (series.steps[-1], series.values[-1]) == (10, 99.0)


def test_a_new_generation_is_read_from_the_start(control: FakeControl) -> None:
    tails: Tails = {}
    reader, wanted = Reader(control, {}), Wanted("loss", all_generations=True)
    read_on(reader, tails, run(control), wanted)
    control.generation, control.first, control.step = 2, 6, 8
    document = read_on(reader, tails, run(control), wanted)
    assert steps(document) == [6, 7, 8]
    assert control.asked[-1][1]["after_step"] == 0


def test_a_long_series_is_thinned_again_by_the_server(control: FakeControl) -> None:
    tails: Tails = {}
    reader, wanted = Reader(control, {}), Wanted("loss")
    for step in range(MOST_POINTS, MOST_POINTS * 2, 100):
        control.step = step
        assert len(read_on(reader, tails, run(control), wanted)) <= MOST_POINTS * 1.25


def test_known_points_stay_while_the_control_plane_is_away(control: FakeControl) -> None:
    tails: Tails = {}
    read_on(Reader(control, {}), tails, run(control), Wanted("loss"))
    control.down = True
    reader = Reader(control, {})
    assert steps(read_on(reader, tails, run(control), Wanted("loss"))) == list(range(1, 11))
    assert reader.outage is not None


def test_series_come_in_the_order_that_they_were_wanted(control: FakeControl) -> None:
    wanted = [Wanted("loss"), Wanted("latency_ms", 0), Wanted("latency_ms", 1)]
    control.values = {"loss": 1.0, "latency_ms": 2.0}
    found = read_all(Reader(control, {}), {}, run(control), wanted)
    assert [series.values[0] for series in found] == [1.0, 2.0, 2.0]


def test_a_page_asks_once_for_all_that_is_new(control: FakeControl) -> None:
    tails: Tails = {}
    wanted = [
        Wanted("loss", all_generations=True),
        *(Wanted(metric, rank) for metric in ("latency_ms", "bubble_ratio") for rank in range(8)),
    ]
    reader = Reader(control, {})
    read_all(reader, tails, run(control), wanted)
    assert len(control.asked) == 2
    control.step = 12
    found = read_all(reader, tails, run(control), wanted)
    assert len(control.asked) == 3
    assert len(control.asked[-1][1]["series"]) == 17
    assert [steps(series)[-1] for series in found] == [12] * 17


def test_only_what_has_become_too_long_is_read_anew(control: FakeControl) -> None:
    tails: Tails = {}
    reader, wanted = Reader(control, {}), [Wanted("loss"), Wanted("latency_ms", 0)]
    read_all(reader, tails, run(control), wanted[1:])
    control.step = MOST_POINTS + 300
    read_all(reader, tails, run(control), wanted)
    control.step += 400
    for series in read_all(reader, tails, run(control), wanted):
        assert steps(series)[-1] >= control.step - 1
        assert len(series) <= MOST_POINTS * 1.25


@pytest.mark.parametrize(
    ("since", "num_found", "num_asked"), [(2500.0, 1000, 1), (1500.0, 2000, 2), (0.0, 2500, 3)]
)
def test_events_are_paged_back_as_far_as_an_old_incident_needs(
    since: float, num_found: int, num_asked: int
) -> None:
    asked = []

    def fetch(path: str, query: Query, body: str) -> Any:
        told = dict(query)
        asked.append(told)
        last = int(told.get("before", 2501)) - 1
        numbers = range(max(1, last - int(told["limit"]) + 1), last + 1)
        return [
            {"id": number, "at": datetime.fromtimestamp(number, UTC).isoformat()}
            for number in numbers
        ]

    events = Reader(fetch, {}).events_since("r1", datetime.fromtimestamp(since, UTC))
    assert [each["id"] for each in events] == list(range(2500, 2500 - num_found, -1))
    assert len(asked) == num_asked
