"""The default pack on real curves, logs and traces: no cry on what was healthy, and everything that
was not is found. Skipped where the data is not there; `tests/campaigns/try_rules.py` prints it all.
"""

from __future__ import annotations

import pytest

from tests import real_curves as real

pytestmark = pytest.mark.skipif(not real.DATA.is_dir(), reason="the curves are not here")

GRADIENT_LED = {("tr8-104B", 11446): 11448, ("tr8-104B", 8738): 8741}
"""(run, first row) -> the step at which the loss had doubled, where the gradient norm rose
before.
"""

TROUBLED = {
    ("tr1-13B", 29020),
    ("tr8-104B", 6900),
    ("tr8-104B", 11446),
    ("tr8-104B", 8738),
    ("tr8-104B", 9026),
    ("tr8b-104B", 17060),
}
"""Episodes with more than one row of trouble. Experiment 1 (7000) has a single bad row between two
that are 200 iterations apart; healthy runs have such rows too.
"""


@pytest.mark.parametrize("path", real.files(*real.HEALTHY), ids=lambda path: path.name)
def test_healthy_curves_are_left_alone(path):
    found = real.tried_file(path)
    assert found["destructive"] == 0
    assert found["per_10k_steps"] <= 1


@pytest.mark.parametrize("path", real.files(*real.SICK), ids=lambda path: path.name)
def test_what_was_sick_is_found(path):
    assert real.tried_file(path)["findings"]


def test_nan_rolls_back_and_a_spike_that_heals_does_not():
    for path in real.files("measured/nan*.csv"):
        found = real.tried_file(path)
        assert found["destructive"] >= 1, path
        first = min(each["fired_step"] for each in found["findings"] if each["action"])
        assert first <= {"nan_sgd_lr5_from_start.csv": 7}.get(path.name, 152)
    [spike] = real.files("measured/spike*.csv")
    assert real.tried_file(spike)["destructive"] == 0


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_every_episode_of_the_bigscience_logs_is_found(noise):
    seen = set()
    for episode in real.episodes():
        first = episode.rows[0][0]
        if len(episode.rows) < 2 or not episode.rows[0][2] or episode.run == "tr11-176B-prequel":
            continue
        found = episode.tried(noise)
        if (episode.run, first) not in TROUBLED:
            assert found["findings"] == [], episode.name
            continue
        assert found["findings"], episode.name
        seen.add((episode.run, first))
        doubled = GRADIENT_LED.get((episode.run, first))
        if doubled is not None:
            assert min(each["fired_step"] for each in found["findings"]) < doubled
    assert seen == TROUBLED


def test_an_absent_loss_beside_a_repeated_norm_is_stale():
    [episode] = [each for each in real.episodes() if each.rows[0][0] == 9026]
    [finding] = episode.tried(0.05)["findings"]
    assert (finding["rule"], finding["fired_step"]) == ("stale values", 9027)


def test_the_straggler_is_named_soon_and_nobody_before():
    found = real.tried("job 1", real.stragglers(1))["findings"]
    assert {each["scope"] for each in found} == {"rank 6"}
    assert min(each["fired_step"] for each in found) in range(1811, 1892)


def test_workers_that_always_differed_are_no_stragglers():
    assert real.tried("job 2", real.stragglers(2))["findings"] == []


def test_an_isolated_norm_of_eleven_thousand_warns_and_does_nothing_to_the_run():
    path = real.DATA / "issues" / "issue_unsloth_5207_gradspike.csv"
    rows = [line.split(",") for line in path.read_text().split()[1:]]
    episode = real.Episode("unsloth", "5207", tuple((int(s), a, b) for s, a, b in rows))
    found = episode.tried(0.3)
    assert 9 in {each["fired_step"] for each in found["findings"]}
    assert found["destructive"] == 0


def test_a_loss_that_vanished_while_all_counters_stayed_at_nothing_is_not_finite():
    path = real.DATA / "issues" / "issue_megatronllm_33_nan.csv"
    lines = path.read_text().splitlines()
    known = [line.split(",")[:3] for line in lines[1:3]]
    rows = [*known, *([str(step), "", ""] for step in range(3385, 3390))]
    episode = real.Episode("megatron", "33", tuple((int(s), a, b) for s, a, b in rows))
    found = episode.tried(0.02)["findings"]
    [lost] = [each for each in found if each["rule"] == "loss not finite"]
    assert (lost["first_bad_step"], lost["fired_step"], lost["action"]) == (3385, 3387, "rollback")
