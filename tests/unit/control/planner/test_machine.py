"""Nodes as planning knows them, from calibrations that are never quite alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from control.planner.automatic import can_tell_apart, choose
from control.planner.fleet import fleet_scenario
from control.planner.machine import Machine, machine_of, settled
from control.planner.search import search
from tests.fakes import snapshots as at
from tests.unit.control.planner.test_fleet import WORKLOAD, spec
from trainmaster.calibration import Calibration, workload_key


def calibrated(value: float, links: dict[str, tuple[float, float]] | None = None):
    told = {
        "age_s": 60.0,
        "flops": {"float32": {"value": value, "spread": 0.01}},
        "links": {
            peer: {"latency_s": latency, "bytes_per_s": rate}
            for peer, (latency, rate) in (links or {}).items()
        },
    }
    return {"calibration": told}


def test_what_was_measured_is_planned_with():
    one = machine_of("oak", 1, calibrated(4e10, {"elm": (1e-3, 1e8)}), 100)
    other = machine_of("elm", 1, calibrated(1e10, {"oak": (1e-3, 4e8)}), 100)
    assert (one.flops, one.measured) == (4e10, {"elm": (1e-3, 1e8)})
    scenario = fleet_scenario([one, other], spec(), WORKLOAD)
    assert [kind.flops for kind in scenario.kinds] == pytest.approx([4e10, 1e10])
    off = ~np.eye(2, dtype=bool)
    assert scenario.bw[off] == pytest.approx([1e8, 4e8])
    assert not any("no calibration" in each for each in scenario.warnings)
    assert machine_of("oak", 1, calibrated(4e10), precision="bf16").flops is None


def test_a_node_without_a_calibration_is_named_and_nobody_elses_is_compared_with_it():
    one, other = machine_of("oak", 1, calibrated(4e10)), Machine("elm")
    scenario = fleet_scenario([one, other], spec(), WORKLOAD)
    assert len({kind.flops for kind in scenario.kinds}) == 1
    assert any("no calibration of elm:" in each for each in scenario.warnings)
    assert not can_tell_apart([one, other])


def test_noise_makes_no_kinds_of_nodes():
    links = {f"n{to}": (1e-4 * (1 + to / 20), 1e9 * (1 + to / 20)) for to in range(4)}
    alike = [machine_of(f"n{at}", 1, calibrated(4e10 * (1 + at / 50), links)) for at in range(4)]
    assert len({each.flops for each in settled(alike)}) == 1
    assert len(set(settled(alike)[0].measured.values())) == 1
    assert not can_tell_apart(alike)
    slower = machine_of("n9", 1, calibrated(2e10, links))
    assert can_tell_apart([*alike, slower])
    far = machine_of("n9", 1, calibrated(4e10, {"n0": (0.02, 1e7)}))
    assert can_tell_apart([*alike, far])


def test_a_calibrated_cluster_gets_shares_that_suit_it():
    rooms = [
        (at.node(name, 1, profile=calibrated(flops)), 1)
        for name, flops in (("oak", 4e10), ("elm", 1.5e10))
    ]
    choice = choose(spec(), WORKLOAD, rooms)
    work: dict[str, int] = {}
    for pipeline in choice.plan.pipelines:
        for node, layers in zip(pipeline.nodes, pipeline.layers, strict=True):
            work[node] = work.get(node, 0) + layers * pipeline.micro_batches
    assert work["oak"] > work.get("elm", 0)
    assert "unequal nodes" in choice.because


def test_doubtful_measurements_are_told():
    shaky = {"float32": {"value": 4e10, "spread": 0.3}}
    bent = {"elm": {"latency_s": 0.1, "bytes_per_s": 1e6, "residual": 0.6}}
    told = {"flops": shaky, "links": bent, "age_s": 40 * 86400.0}
    one = machine_of("oak", 1, {"calibration": told})
    told = fleet_scenario([one], spec(), WORKLOAD).warnings
    assert any("the FLOP/s of oak spread by 30%" in each for each in told)
    assert any("oak was calibrated 40 days ago" in each for each in told)
    assert any("from oak to elm" in each for each in told)


def test_eight_nodes_of_seven_kinds_are_tried_to_the_end_and_a_search_ends_when_it_is_told():
    machines = [Machine(f"n{each}", layer_time_s=0.01 * (1 + each % 7)) for each in range(8)]
    scenario = fleet_scenario(machines, spec(), WORKLOAD).replaced(schedules=("1f1b", "gpipe"))
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 300

    found = search(scenario, stop=stop)
    assert found.stopped
    assert not found.exact
    assert asked < 400, "it went on"
    thorough = search(scenario)
    assert thorough.exact
    assert thorough.verdict.step_s <= found.verdict.step_s


def timed(seconds: float, kept: float = 5e4) -> dict[str, object]:
    """A profile in which each layer of the workload was measured, and its products are told too."""
    layer = {
        "forward_s": 1e-3,
        "forward_per_sample_s": seconds,
        "backward_s": 1e-3,
        "backward_per_sample_s": 3 * seconds,
        "kept_bytes": kept,
    }
    workloads = {KEY: {"workload": "somewhere:workload", "layers": [layer] * 8}}
    found = calibrated(4e10)["calibration"]
    return {"calibration": {**found, "workloads": workloads}}


KEY = workload_key("somewhere:workload", {}, WORKLOAD.code_sha256)


def test_layers_that_were_measured_go_before_products_of_matrices():
    machines = [
        machine_of(name, 1, timed(seconds), workload=KEY)
        for name, seconds in (("oak", 0.01), ("elm", 0.0102), ("fig", 0.03))
    ]
    scenario = fleet_scenario(machines, spec(), WORKLOAD)
    assert len(scenario.kinds) == 2, "oak and elm are told apart by noise alone"
    seconds = scenario.seconds(2)
    forward, backward = seconds.forward[:, -1], seconds.backward[:, -1]
    assert max(forward) == pytest.approx(8 * (1e-3 + 2 * 0.03))
    assert max(backward) == pytest.approx(8 * (1e-3 + 2 * 0.09))
    assert scenario.layers.act == pytest.approx(5e4)
    assert not any("products of matrices" in each for each in scenario.warnings)
    assert not any("is taken for" in each and "output" in each for each in scenario.warnings)


def test_times_of_another_workload_or_precision_or_of_some_nodes_alone_are_not_used():
    other = machine_of("oak", 1, timed(0.01), workload="another")
    half = machine_of("oak", 1, timed(0.01), workload=KEY, precision="bf16")
    assert other.timed == half.timed == ()
    some = [machine_of("oak", 1, timed(0.01), workload=KEY), machine_of("elm", 1, calibrated(4e10))]
    scenario = fleet_scenario(some, spec(), WORKLOAD)
    assert not any(kind.timed for kind in scenario.kinds)


@pytest.mark.parametrize(
    ("profile", "what"),
    [
        ({"speed": 1e-320}, "speed: "),
        ({"speed": "fast"}, "speed: "),
        ({"layer_time_s": 1e308}, "layer_time_s: "),
        ({"memory_bytes": 10**400}, "memory_bytes: "),
        ({"links": {"elm": {"mbps": math.nan}}}, "links.elm.mbps: "),
        ({"links": {"elm": 7}}, "links.elm: "),
        ({"links": [1]}, "links: "),
    ],
)
def test_what_a_node_cannot_be_is_not_planned_with(profile, what):
    found = machine_of("oak", 1, {**profile, "kind_of_its_own": 1}, 1000)
    assert (found.speed, found.layer_time_s, found.memory_bytes) == (None, None, 1000)
    [doubt] = found.doubts
    assert doubt.startswith(f"what oak states is left out of account: {what}")


@pytest.mark.parametrize("odd", [0, -1.0, 1e-320, 1e308, math.nan, math.inf, "fast", None])
@pytest.mark.parametrize(
    ("told", "where"),
    [
        (lambda odd: {"flops": {"float32": {"value": odd}}}, ("flops", "float32", "value")),
        (
            lambda odd: {"links": {"elm": {"latency_s": 0.0, "bytes_per_s": odd}}},
            ("links", "elm", "bytes_per_s"),
        ),
        (lambda odd: {"layer_time_s": {"value": odd}}, ("layer_time_s", "value")),
    ],
)
def test_what_nothing_can_measure_is_refused_with_its_place(told, where, odd):
    with pytest.raises(ValidationError) as caught:
        Calibration.model_validate({"device": "cpu", **told(odd)})
    assert [each["loc"] for each in caught.value.errors()] == [where]
