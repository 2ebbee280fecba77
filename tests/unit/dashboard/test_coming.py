from typing import Any

import pytest

from dashboard.coming import Coming, coming

RUN = {
    "id": "r1",
    "state": "running",
    "step": 119,
    "target_steps": 400,
    "checkpoint_interval": {"every_steps": 50, "from_step": 0},
    "ranks": [{"rank": 0, "node": "oak"}, {"rank": 1, "node": "elm"}],
}


@pytest.mark.parametrize(
    ("step", "every", "origin", "next_"),
    [
        (119, 50, 0, Coming("checkpoint", step=150)),
        (150, 50, 0, Coming("checkpoint", step=200)),
        (119, 50, 110, Coming("checkpoint", step=160)),
        (360, 50, 0, Coming("end", step=400)),
        (119, None, 0, Coming("end", step=400)),
    ],
)
def test_a_run_that_runs_comes_to_its_next_checkpoint_or_its_end(
    step: int, every: int | None, origin: int, next_: Coming
) -> None:
    interval = {"every_steps": every, "from_step": origin}
    assert coming({**RUN, "step": step, "checkpoint_interval": interval}, [], []) == [next_]


def test_an_incident_that_asks_comes_first_and_the_earliest_deadline_before_others() -> None:
    def asking(rule: str, answer_by: str) -> dict[str, Any]:
        return {"rule": rule, "proposed": {"answer_by": answer_by, "then": "keep"}}

    told = coming(
        RUN,
        [asking("later", "2026-01-01T02:00:00Z"), asking("soon", "2026-01-01T01:00:00Z")],
        [],
    )
    assert [each.words.get("rule") for each in told] == ["soon", "later", None]
    assert told[0].words["then"] == "keep"


def test_a_probation_ends_after_the_healthy_steps_that_it_still_needs() -> None:
    verifying = {
        "rule": "spike",
        "state": "verifying",
        "verification": {"needed": 20, "healthy_steps": 12},
    }
    first, *_ = coming(RUN, [verifying], [])
    assert (first.kind, first.step, first.words["left"]) == ("probation", 127, "8")


def test_a_run_out_of_contact_waits_unless_its_spec_says_for_how_long() -> None:
    nodes = [
        {"id": "oak", "state": "present", "last_seen_at": "2026-01-01T00:00:09Z"},
        {"id": "elm", "state": "lost", "last_seen_at": "2026-01-01T00:00:00Z"},
    ]
    run = {**RUN, "state": "unreachable"}
    assert coming(run, [], nodes) == [Coming("waits")]
    patient = {**run, "spec": {"recovery": {"unreachable_after_s": 600.0}}}
    (told,) = coming(patient, [], nodes)
    assert (told.kind, told.seconds, told.words) == ("lost", 600.0, {"node": "elm"})


@pytest.mark.parametrize("state", ["paused", "held", "stopped", "failed"])
def test_what_only_a_person_moves_says_so(state: str) -> None:
    assert coming({**RUN, "state": state}, [], []) == [Coming("nothing")]


def test_nothing_comes_after_success_or_is_known_of_a_state_of_a_newer_version() -> None:
    assert coming({**RUN, "state": "succeeded"}, [], []) == []
    assert coming({**RUN, "state": "never_heard_of"}, [], []) == []
