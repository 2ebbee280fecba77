"""Rules tried over HTTP on runs, by their stored points, and on CSVs; rules that look at ranks;
packs that are renewed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from control.clock import SystemClock
from control.db import rulebook, tables
from control.db.load import Memory, load
from control.db.sql.engine import Database
from control.rules import packs
from control.rules.watching import Watches, judge_all
from tests.integration.control.api import Plane
from tests.integration.control.api import plane as served
from tests.integration.control.scene import Scene, columns, plan
from trainmaster import document
from trainmaster.home import Home
from trainmaster.rule import RuleFile

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SPIKY = """
rules:
  - name: three times
    metric: loss
    when: {condition: ratio_to_median, above: 3, window: 16, min_samples: 8}
tests:
  - {rule: three times, series: {loss: [1, 1, 1, 1, 1, 1, 1, 1, 5]}, expect: {fired_step: 9}}
"""
SLOW = """
rules:
  - name: slower
    metric: compute_s
    scope: rank
    when: {condition: relative_to_best_peer, below: 0.5, window: 4}
"""
BEHIND = """
rules:
  - name: behind
    metric: trusted_lag_ratio
    when: {condition: above, value: 0.2}
"""


@pytest.fixture
def here(db: Database, tmp_path: Path) -> Iterator[Plane]:
    with served(db, Home(tmp_path / "home"), SystemClock()) as made:
        yield made


@pytest.fixture
def scene(here: Plane) -> Scene:
    made = Scene(here.db, SystemClock())
    made.sync()
    made.submit()
    made.begin()
    made.decide(state="running")
    return made


def test_rules_are_tried_on_the_stored_points_of_runs_and_on_csvs(
    here: Plane, scene: Scene
) -> None:
    losses = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 5.0, 1.0]
    scene.sync(scene.batch(0, 99, samples=columns(range(1, 12), loss=losses)))
    viewer = here.people["viewer"]
    text = "step,loss\n" + "".join(f"{step},{value}\n" for step, value in enumerate(losses, 1))
    of_run, of_csv = viewer.post(
        "/v1/backtest",
        {"text": SPIKY, "runs": [scene.run], "csv": [{"name": "a.csv", "text": text}]},
    )
    assert (of_run["source"], of_csv["source"]) == (scene.run, "a.csv")
    [finding] = of_run["findings"]
    assert (finding["first_bad_step"], finding["fired_step"]) == (10, 10)
    assert of_csv["findings"] == of_run["findings"]
    by_default = viewer.post("/v1/backtest", {"rules": "default", "runs": [scene.run]})
    assert by_default[0]["steps"] == 11
    assert "slow rank" in by_default[0]["not_applicable"]


def test_what_cannot_be_tried_is_refused_with_what_is_wrong(here: Plane, scene: Scene) -> None:
    viewer = here.people["viewer"]
    for body, told in (
        ({"rules": "default"}, "give runs or csv"),
        ({"rules": "nobody's", "runs": [scene.run]}, "no rule or pack named"),
        ({"text": "rules: [{name: x}]", "runs": [scene.run]}, "rules[0].metric"),
        ({"rules": "default", "csv": [{"name": "a", "text": "loss\n1\n"}]}, "no column `step`"),
        ({"rules": "default", "csv": [{"name": "a", "text": "step,loss\n1,x\n"}]}, "number"),
        ({"rules": "default", "runs": ["r0123456789"]}, "r0123456789"),
    ):
        answer = viewer.call("POST", "/v1/backtest", body)
        assert answer.status_code in {400, 404, 422}, answer.text
        assert told in answer.text
    assert viewer.post("/v1/rules/test", {"text": SPIKY}) == {"tests": 1, "failed": []}
    wrong = SPIKY.replace("fired_step: 9", "fired_step: 8")
    assert (
        "fired at 9, expected at 8" in viewer.post("/v1/rules/test", {"text": wrong})["failed"][0]
    )


def test_a_rule_on_ranks_names_the_rank_live_as_in_a_back_test(here: Plane, scene: Scene) -> None:
    scene.begin(2, parent=1, under=plan(replicas=2, stages=1))
    here.people["operator"].post("/v1/rules", {"text": SLOW}, expect=201)
    times = {0: [1.0] * 20, 1: [1.0] * 10 + [3.0] * 10}
    memory, watches = Memory(), Watches()
    seen = []
    for start in (0, 7, 14):
        for rank, own in times.items():
            steps = range(start + 1, min(start + 7, 20) + 1)
            told = columns(steps, compute_s=own[start : start + 7])
            scene.sync(scene.batch(start, start + 7, rank=rank, generation=2, samples=told))
        with scene.db.read() as connection:
            found = load(
                connection,
                scene.run,
                now=scene.clock.now(),
                control_up_since=None,
                memory=memory,
            )
        assert found is not None
        judged = [each for each in watches.judge(found.snapshot) if each.rule.name == "slower"]
        anew = [each for each in judge_all(found.snapshot) if each.rule.name == "slower"]
        assert judged == anew, "what is remembered is what comes out anew"
        seen.append({each.scope: each.state for each in judged})
    assert seen[-1] == {"rank 0": "inactive", "rank 1": "firing"}
    body = {"text": SLOW, "runs": [scene.run]}
    [tried] = here.people["viewer"].post("/v1/backtest", body)
    assert [each["scope"] for each in tried["findings"]] == ["rank 1"]


def test_rules_are_read_again_once_one_has_changed(db: Database) -> None:
    kept = rulebook.Kept()
    told = {"actor": "ada", "why": "", "now": NOW}
    [rule] = document.parse(RuleFile, SPIKY).rules

    def seen() -> list[tuple[str, str]]:
        with db.read() as connection:
            found = kept.active(connection, "mine")
            assert kept.active(connection, ["mine"]) is found, "nothing has changed"
            assert found == rulebook.active(connection, "mine")
        return [(each.name, each.description) for each in found]

    assert seen() == []
    with db.write() as connection:
        rulebook.add(connection, [rule], pack="mine", **told)
    assert seen() == [(rule.name, "")]
    edited = rule.model_copy(update={"description": "edited within the same second"})
    with db.write() as connection:
        rulebook.replace(connection, rule.name, edited, expected_version=1, change="edited", **told)
    assert seen() == [(rule.name, edited.description)]
    with db.write() as connection:
        rulebook.remove(connection, rule.name, **told)
    assert seen() == []


def test_a_nan_in_the_stored_points_is_tried_as_one(here: Plane, scene: Scene) -> None:
    norms = [1.0, math.nan, math.inf, math.nan, 1.0]
    scene.sync(scene.batch(0, 9, samples=columns(range(1, 6), grad_norm=norms)))
    [tried] = here.people["viewer"].post("/v1/backtest", {"runs": [scene.run]})
    rollback = [each for each in tried["findings"] if each["action"] == "rollback"]
    assert [each["rule"] for each in rollback] == ["gradient not finite"]


def test_how_far_the_trusted_checkpoint_was_behind_can_be_tried(here: Plane, scene: Scene) -> None:
    scene.sync(scene.batch(0, 99, samples=columns(range(1, 6), step_time_s=[1.0] * 5)))
    told = {"text": BEHIND, "runs": [scene.run]}
    [tried] = here.people["viewer"].post("/v1/backtest", told)
    assert tried["findings"] == [], "no more than the interval lies behind it"
    with scene.db.write() as connection:
        connection.execute(update(tables.attempts).values(checkpoint_every=1))
    [tried] = here.people["viewer"].post("/v1/backtest", told)
    assert [each["first_bad_step"] for each in tried["findings"]] == [5]


def test_packs_are_renewed_but_for_what_somebody_has_touched(here: Plane) -> None:
    operator = here.people["operator"]
    operator.call("PATCH", "/v1/rules/high memory", {"set": {"when.value": 0.8, "when.clear": 0.7}})
    r = tables.rules.c
    with here.db.write() as connection:
        old = {**packs.load("quiet")[0].to_json(), "description": "of the release before"}
        connection.execute(update(tables.rules).where(r.name == old["name"]).values(body=old))
        renewed = [
            rulebook.seed(connection, packs.load(name), pack=name, now=NOW) for name in packs.NAMES
        ]
    assert renewed == [0, 1]
    assert operator.get("/v1/rules/high memory")["when"]["value"] == 0.8
    assert operator.get(f"/v1/rules/{old['name']}")["description"] != "of the release before"


def test_rules_that_nobody_could_carry_out_or_judge_are_refused(here: Plane) -> None:
    operator = here.people["operator"]
    sound = {"name": "x", "metric": "loss", "when": {"condition": "above", "value": 1}}
    for changes, told in (
        ({"metric": "los"}, "not a metric"),
        ({"when": {"condition": "above", "value": 1, "metric": "Loss"}}, "not a metric"),
        ({"metric": "tokens_per_s", "scope": "rank"}, "is of the whole run"),
        ({"scope": "run", "when": {"condition": "relative_to_best_peer"}}, "needs a scope"),
        ({"mode": "ask"}, "nothing to ask about"),
        ({"mode": "act"}, "nothing that it could do"),
        ({"when": {"condition": "custom", "name": "nobody's"}}, "no installed condition"),
    ):
        answer = operator.call("POST", "/v1/rules", {"rules": [{**sound, **changes}]})
        assert answer.status_code == 422, answer.text
        assert told in answer.text
    both = [{**sound, "metric": "los"}, {**sound, "mode": "acts"}]
    problems = operator.call("POST", "/v1/rules", {"rules": both}).json()["problems"]
    assert {each["path"] for each in problems} == {"rules[0].metric", "rules[1].mode"}


def test_a_rule_that_cannot_be_read_here_does_not_keep_the_others_from_judging(
    here: Plane,
) -> None:
    r = tables.rules.c
    with here.db.write() as connection:
        [name] = [each.name for each in packs.load("quiet")][:1]
        body = {**packs.load("quiet")[0].to_json(), "when": {"condition": "custom", "name": "gone"}}
        connection.execute(update(tables.rules).where(r.name == name).values(body=body))
        found = rulebook.active(connection, "quiet")
    assert len(found) == len(packs.load("quiet")) - 1


def test_a_stored_rule_that_may_act_and_has_no_action_goes_on_to_warn(here: Plane) -> None:
    r = tables.rules.c
    with here.db.write() as connection:
        first = packs.load("quiet")[0]
        body = {**first.to_json(), "mode": "act", "actions": []}
        connection.execute(update(tables.rules).where(r.name == first.name).values(body=body))
        found = {rule.name: rule for rule in rulebook.active(connection, "quiet")}
    assert (found[first.name].mode, len(found)) == ("observe", len(packs.load("quiet")))


def test_what_a_rule_looked_at_comes_with_its_findings_where_it_is_asked_for(
    here: Plane, scene: Scene
) -> None:
    losses = [1.0, math.nan, 0.9, 5.0]
    scene.sync(scene.batch(0, 99, samples=columns(range(1, 5), loss=losses)))
    text = "step,loss\n1,2.5\n2,\n3,inf\n"
    of_run, of_csv = here.people["viewer"].post(
        "/v1/backtest",
        {
            "text": SPIKY,
            "runs": [scene.run],
            "csv": [{"name": "a.csv", "text": text}],
            "curves": True,
        },
    )
    [line] = of_run["curve"]["lines"]
    assert (of_run["curve"]["metric"], line["scope"]) == ("loss", "run")
    assert line["columns"]["step"] == [1, 2, 3, 4]
    assert line["columns"]["value"] == [1.0, "NaN", 0.9, 5.0]
    [line] = of_csv["curve"]["lines"]
    assert line["columns"]["step"] == [1, 3]
    assert line["columns"]["value"] == [2.5, "Infinity"]


def test_the_curve_of_each_rank_is_told_for_a_rule_by_rank(here: Plane) -> None:
    text = "step,rank,compute_s\n" + "".join(
        f"{step},{rank},{1 + rank}\n" for step in range(1, 4) for rank in (0, 1)
    )
    [found] = here.people["viewer"].post(
        "/v1/backtest",
        {"text": SLOW, "csv": [{"name": "a.csv", "text": text}], "curves": True},
    )
    assert [each["scope"] for each in found["curve"]["lines"]] == ["rank 0", "rank 1"]
    assert [each["columns"]["value"] for each in found["curve"]["lines"]] == [[1] * 3, [2] * 3]
