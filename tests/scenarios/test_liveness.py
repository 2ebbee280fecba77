"""A rank that hangs, a link that is cut, a node that is gone: told apart, and each ends well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.ring import OAK, Ring, running, same_losses, tiny, until

PAIR = [{**OAK, "slots": 2}, {**OAK, "name": "elm", "slots": 2}]
APART = {"nodes": 2, "min_nodes": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """Two nodes with two slots each; what dies stays dead."""
    home = tmp_path_factory.mktemp("pair") / "home"
    with running(home, nodes=PAIR, TRAINMASTER_SUPERVISE="0") as up:
        yield up


def spread(name: str, corpus: Path, **changes: Any) -> dict[str, Any]:
    """A run with one replica on each node."""
    return {**tiny(name, corpus, **changes), "placement": APART}


def test_a_rank_that_hangs_is_named_its_stacks_are_kept_and_the_run_goes_on(
    pair: Ring, twin: dict[str, Any], corpus: Path
):
    run = pair.submit(spread("hangs", corpus))
    pair.wait_for_step(run, 12)
    pair.json("drill", run, "hang", "--rank", 2, "--for", "600s")
    [incident] = until(lambda: pair.json("incidents", run), within_s=60, what="an incident")
    shown = pair.json("stacks", run)
    assert {each["rank"] for each in shown} <= {0, 1, 2, 3}
    done = pair.wait_for(run, "succeeded")
    assert done["generation"] == 2, done["attempts"]
    cause = done["attempts"][1]["cause"]
    assert cause.startswith("rank 2 hung at step "), cause
    assert "no progress for 1" in cause
    assert "(drill hang)" in cause
    [incident] = pair.json("incidents", run)
    assert (incident["rule"], incident["closed_as"]) == ("hang", "resolved")
    assert incident["drill"] == "hang"
    assert {each["rank"] for each in incident["stacks"]} == {0, 1, 2, 3}
    [alert] = [each for each in pair.json("alerts", run) if each["rule"] == "hang"]
    assert (alert["scope"], alert["state"], alert["drill"]) == ("rank 2", "resolved", "hang")
    assert done["weights_sha256"] == twin["weights_sha256"]
    assert same_losses(pair.losses(run), twin["losses"]) == []


def test_a_cut_link_of_a_healthy_run_costs_nothing(pair: Ring, twin: dict[str, Any], corpus: Path):
    run = pair.submit(spread("cut", corpus, steps=250))
    pair.wait_for_step(run, 12)
    pair.json("drill", run, "disconnect", "--node", "elm", "--for", "14s")
    cut = pair.wait_for(run, "unreachable")
    assert "still reaches its agent" in cut["because"], cut["because"]
    done = pair.wait_for(run, "succeeded")
    assert done["generation"] == 1
    assert len(pair.losses(run)) == 250, "what was told late is there"


def test_a_node_that_is_gone_is_missed_by_its_neighbour_and_the_run_goes_on_with_less(
    pair: Ring, twin: dict[str, Any], corpus: Path
):
    run = pair.submit(spread("gone", corpus))
    pair.wait_for_step(run, 22)
    for name in ("agent:elm", "nest:elm"):
        os.kill(int(pair.process(name)["pid"]), signal.SIGKILL)
    done = pair.wait_for(run, "succeeded")
    assert done["attempts"][0]["state"] in {"lost", "failed"}
    newest = done["attempts"][-1]
    assert newest["plan"]["replicas"] == 1
    assert newest["resumed_from_step"] >= 20
    spent = pair.json("goodput", run)
    assert spent["degraded_step_s"] > 0
    buckets = sum(v for k, v in spent.items() if k not in {"wall_s", "productive_ratio"})
    assert abs(buckets - spent["wall_s"]) <= 0.005 * spent["wall_s"]
    fleet = pair.json("goodput")
    assert fleet["recoveries"]["restarts"] >= 2
    assert fleet["recoveries"]["drills"] == 1
