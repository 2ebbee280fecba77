"""Rules on a link, a rank that hangs, a link that is cut, a node that is gone: told apart, and each
ends well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scenarios.ring import OAK, Ring, running, tiny, until
from trainmaster.errors import ConflictError

PAIR = [{**OAK, "slots": 2}, {**OAK, "name": "elm", "slots": 2}]
STEPS = 300


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """Two nodes with two slots each; what dies stays dead."""
    home = tmp_path_factory.mktemp("pair") / "home"
    with running(home, nodes=PAIR, TRAINMASTER_SUPERVISE="0") as up:
        yield up


LINK = "link elm - oak"
RULES = {
    "rules": [
        {
            "name": "sums take long",
            "metric": "latency_ms",
            "scope": "link",
            "when": {"condition": "above", "value": 1e-3},
            "for": {"steps": 3},
            "mode": "ask",
            "actions": [{"action": "restart"}],
        },
        {
            "name": "sums are seen",
            "metric": "bandwidth_bytes_per_s",
            "scope": "link",
            "when": {"condition": "above", "value": 1},
        },
    ]
}
"""Both are bad from the first step: every sum takes time."""


def two_rules_watch_one_link(ring: Ring, run: str) -> None:
    """What they see is one incident, which names both ends; a person dismisses what one asks."""
    with ring.client() as api:
        api.post("/v1/rules", {"text": yaml.safe_dump(RULES)})
        [incident] = until(lambda: api.get("/v1/incidents"), what="an incident")
        assert (incident["rule"], incident["state"]) == ("sums take long", "waiting")
        assert incident["proposed"]["scope"] == LINK
        assert f"latency_ms of {LINK} was bad" in incident["because"]
        path = f"/v1/incidents/{incident['id']}"
        told = until(lambda: api.get(path)["alerts"][1:] and api.get(path)["alerts"])
        assert {(each["rule"], each["scope"]) for each in told} == {
            ("sums take long", LINK),
            ("sums are seen", LINK),
        }
        ring.json("dismiss", incident["id"], "--why", "sums take time")
        shown = api.get(path)
        assert (shown["state"], shown["closed_as"]) == ("closed", "dismissed")
        assert "sums take time" in shown["because"]
        with pytest.raises(ConflictError, match="does not wait for an answer"):
            api.post(f"{path}/approve", {})
        assert ring.show(run)["generation"] == 1, "nothing was restarted"
        for rule in RULES["rules"]:
            api.delete(f"/v1/rules/{rule['name']}")


def a_rank_hangs(ring: Ring, run: str) -> None:
    """It is named, its stacks are kept, and the run goes on."""
    ring.json("drill", run, "hang", "--rank", 2, "--for", "600s")
    ring.wait_for_step(run, 30, generation=2)
    cause = ring.show(run)["attempts"][1]["cause"]
    assert cause.startswith("rank 2 hung at step "), cause
    assert "no progress for 1" in cause
    assert "(drill hang)" in cause
    [alert] = [each for each in ring.json("alerts", run) if each["rule"] == "hang"]
    assert (alert["scope"], alert["state"], alert["drill"]) == ("rank 2", "resolved", "hang")


def a_link_is_cut(ring: Ring, run: str) -> None:
    """A neighbour still reaches the node: nothing is restarted."""
    ring.json("drill", run, "disconnect", "--node", "elm", "--for", "14s")
    cut = ring.wait_for(run, "unreachable")
    assert "still reaches its agent" in cut["because"], cut["because"]
    back = ring.wait_for(run, "running")
    assert back["generation"] == 2, back["attempts"]


def a_node_is_gone(ring: Ring, run: str) -> None:
    """Its neighbour has lost it: the run goes on with fewer replicas, within the lease."""
    ring.kill("agent:elm")  # and with it its nest and its ranks
    done = ring.wait_for(run, "succeeded")
    newest = done["attempts"][-1]
    assert (newest["plan"]["replicas"], done["ranks"][0]["node"]) == (1, "oak")
    assert "of 2 replicas" in newest["cause"]


def test_troubles_are_told_apart_and_each_ends_well(pair: Ring, corpus: Path):
    spec = tiny("troubled", corpus, steps=STEPS)
    run = pair.submit({**spec, "placement": {"nodes": 2, "min_nodes": 1}})
    pair.wait_for_step(run, 12)
    shown = pair.json("stacks", run)
    assert [each["rank"] for each in shown] == [0, 1, 2, 3]
    assert all("train" in each["text"] for each in shown), "where they stand, while they go on"
    two_rules_watch_one_link(pair, run)
    a_rank_hangs(pair, run)
    a_link_is_cut(pair, run)
    a_node_is_gone(pair, run)
    assert len(pair.losses(run)) == STEPS, "what was told late is there, and each step once"
    [_, incident, *_] = pair.json("incidents", run)
    assert (incident["rule"], incident["closed_as"]) == ("hang", "resolved")
    assert incident["drill"] == "hang"
    assert {each["rank"] for each in incident["stacks"]} == {0, 1, 2, 3}
    _accounts_are_right(pair.json("goodput", run), pair.json("goodput"))


def _accounts_are_right(spent: dict[str, Any], fleet: dict[str, Any]) -> None:
    assert spent["degraded_step_s"] > 0
    buckets = sum(v for k, v in spent.items() if k not in {"wall_s", "productive_ratio"})
    assert abs(buckets - spent["wall_s"]) <= 0.005 * spent["wall_s"]
    assert fleet["recoveries"]["restarts_by_cause"]["hang"] == 1
    assert fleet["recoveries"]["restarts"] == 2
    assert fleet["recoveries"]["drills"] == 1
    assert fleet["recoveries"]["mttr_p95_s"] > 0
