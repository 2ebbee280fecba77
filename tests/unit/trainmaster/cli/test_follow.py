"""Following a run: through restarts of the control plane, to its end."""

import pytest

from tests.fakes.api import FakeApi, FakeClock
from trainmaster.cli.follow import PATIENCE_S, follow
from trainmaster.cli.pace import Pace, Progress
from trainmaster.errors import UnavailableError

AWAY = UnavailableError("the control plane is out of reach")


def run(state: str = "running", step: int = 1, generation: int = 1, because: str = "") -> dict:
    return {
        "id": "r1",
        "state": state,
        "step": step,
        "target_steps": 100,
        "generation": generation,
        "because": because,
        "loss": 2.5,
        "tokens_per_s": 12000.0,
    }


class Screen:
    def __init__(self) -> None:
        self.seen: list[Progress] = []
        self.notes: list[str] = []

    def update(self, progress: Progress) -> None:
        self.seen.append(progress)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def close(self) -> None:
        pass


def followed(*answers) -> tuple[dict | None, Screen]:
    screen, clock = Screen(), FakeClock()
    api = FakeApi({"GET /v1/runs/r1": answers})
    last = follow(api, "r1", screen, sleep=clock.sleep, monotonic=clock.monotonic)
    return last, screen


def test_it_outlives_a_control_plane_that_is_away_for_a_while():
    last, screen = followed(run(), *[AWAY] * 30, run(step=50), run("succeeded", 100))
    assert last is not None
    assert last["state"] == "succeeded"
    assert [progress.step for progress in screen.seen] == [1, 50, 100]
    assert len(screen.notes) == 2, "told once that it is away, and once that it is back"


def test_it_gives_up_on_one_that_stays_away():
    with pytest.raises(UnavailableError):
        followed(run(), *[AWAY] * (int(PATIENCE_S) + 10))


def test_why_a_run_left_running_is_told_once():
    recovering = run("recovering", 40, because="rank 3 killed by signal 9")
    _, screen = followed(run(), recovering, recovering, run("succeeded", 100))
    assert screen.notes == ["recovering: rank 3 killed by signal 9"]


def test_the_remaining_time_follows_the_pace_and_counts_down_between_steps():
    pace = Pace()
    assert pace.progress(run(step=10), 0.0).eta_s is None
    assert pace.progress(run(step=20), 5.0).eta_s == pytest.approx(40.0)
    assert pace.progress(run(step=20), 7.0).eta_s == pytest.approx(38.0)


def test_a_new_generation_has_its_own_pace():
    pace = Pace()
    pace.progress(run(step=10), 0.0)
    pace.progress(run(step=20), 1.0)
    assert pace.progress(run(step=11, generation=2), 2.0).eta_s is None
    assert pace.progress(run(step=12, generation=2), 4.0).eta_s == pytest.approx(176.0)


def test_the_numbers_of_an_ended_run_name_no_remaining_time():
    assert Pace().progress(run("failed", 7), 0.0).numbers() == "loss 2.5 · 12,000 tokens/s · failed"
