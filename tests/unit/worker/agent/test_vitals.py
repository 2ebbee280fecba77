"""What an agent counts of itself, as Prometheus reads it."""

from __future__ import annotations

import pytest

from worker.agent.vitals import Vitals


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(vitals: Vitals) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("outcome", sample.labels.get("le", ""))): sample.value
        for family in vitals.families("oak")
        for sample in family.samples
    }


def test_turns_are_counted_with_their_time_also_those_that_fail():
    watch = Watch()
    vitals = Vitals(watch)
    with vitals.turn():
        watch.now += 0.02
    with pytest.raises(OSError), vitals.turn():
        watch.now += 20
        raise OSError
    found = shown(vitals)
    name = "trainmaster_agent_turn_duration_seconds"
    assert (found[f"{name}_bucket", "0.025"], found[f"{name}_bucket", "10.0"]) == (1, 1)
    assert found[f"{name}_bucket", "+Inf"] == 2
    assert found[f"{name}_sum", ""] == pytest.approx(20.02)
    assert found["trainmaster_agent_turns_failed_total", ""] == 1


def test_silence_grows_until_the_control_plane_answers():
    watch = Watch()
    vitals = Vitals(watch)
    watch.now += 7
    vitals.failed()
    assert shown(vitals)["trainmaster_agent_silence_seconds", ""] == 7
    vitals.answered()
    vitals.unsent_bytes = 4096
    watch.now += 1
    found = shown(vitals)
    assert found["trainmaster_agent_silence_seconds", ""] == 1
    assert found["trainmaster_agent_syncs_total", "answered"] == 1
    assert found["trainmaster_agent_syncs_total", "failed"] == 1
    assert found["trainmaster_agent_unsent_bytes", ""] == 4096
