"""Rules in PromQL: exactly, or left out by name."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.prometheus import promql
from control.settings import EXTERNAL_ACTIONS
from tests.services.private_server import absent
from trainmaster.rule import Rule

HOT = {
    "name": "memory full",
    "metric": "memory_used_ratio",
    "when": {"condition": "above", "value": 0.9},
    "for": {"seconds": 60},
}


def rule(**changes: Any) -> Rule:
    return Rule.model_validate({**HOT, **changes})


def alert(**changes: Any) -> dict[str, Any]:
    found = promql.export([rule(**changes)])
    assert found.left_out == []
    return dict(found.groups[-1]["rules"][0])


def test_a_threshold_is_said_with_its_time_and_its_severity():
    told = alert()
    assert told["alert"] == "memory full"
    assert told["for"] == "60000ms"
    assert told["keep_firing_for"] == "1m"
    assert told["labels"] == {"severity": "warning", "trainmaster_rule": "memory full"}
    assert told["expr"].startswith("(max by (run) (trainmaster_memory_used_ratio) > 0.9) or ")


@pytest.mark.parametrize(
    ("scope", "labels"),
    [("rank", "run, rank, node"), ("node", "run, node"), ("stage", "run, stage")],
)
def test_the_scope_says_what_is_kept_apart(scope: str, labels: str):
    assert f"by ({labels})" in alert(scope=scope)["expr"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"for": {"steps": 3, "within": 20}}, "counts steps"),
        ({"when": {"condition": "robust_z", "above": 6.0}, "for": {"steps": 1}}, "robust_z"),
        ({"when": {"condition": "above", "value": 0.9, "clear": 0.8}}, "another value"),
        ({"metric": "applied"}, "applied is not exported"),
        ({"scope": "link"}, "by link"),
        ({"warmup_steps": 5}, "leaves steps out"),
        (
            {
                "when": {
                    "condition": "all",
                    "of": [HOT["when"], {"condition": "age", "above_s": 60.0}],
                }
            },
            "age",
        ),
    ],
)
def test_what_cannot_be_said_exactly_is_left_out_by_name(changes: dict[str, Any], why: str):
    found = promql.export([rule(**changes)])
    assert [group["name"] for group in found.groups] == [promql.RECORDED]
    [(name, told)] = found.left_out
    assert name == "memory full"
    assert why in told


def test_a_rule_that_is_switched_off_is_not_there():
    found = promql.export([rule(enabled=False)])
    assert (len(found.groups), found.left_out) == (1, [])


def test_only_an_action_that_may_come_back_is_carried():
    cordon = {"mode": "act", "actions": [{"action": "cordon"}]}
    assert alert(**cordon)["labels"]["trainmaster_action"] == "cordon"
    assert "trainmaster_action" not in alert(mode="act", actions=[{"action": "rollback"}])["labels"]
    assert "trainmaster_action" not in alert(**{**cordon, "mode": "observe"})["labels"]


def promtool(*words: object) -> str:
    if shutil.which("promtool") is None:
        absent("Prometheus' promtool")
    done = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_them_and_they_fire_as_the_rules_say(tmp_path: Path):
    rules = [
        rule(name="{{ $labels.instance }} ${DB_PASSWORD}", description="{{ .Value }}"),
        rule(
            name="loss gone",
            metric="loss",
            when={"condition": "non_finite"},
            **{"for": {"steps": 1}},
        ),
        rule(
            name="idle and slow",
            scope="rank",
            metric="utilization_ratio",
            when={
                "condition": "all",
                "of": [
                    {"condition": "below", "value": 0.5},
                    {"condition": "above", "value": 0.2, "metric": "bubble_ratio"},
                ],
            },
            **{"for": {"steps": 1}},
        ),
    ]
    groups = promql.export(rules).groups
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    assert "SUCCESS" in promtool("check", "rules", tmp_path / "rules.yml")

    def series(name: str, values: str, **labels: str) -> dict[str, str]:
        told = ", ".join(f'{key}="{value}"' for key, value in {"run": "ra", **labels}.items())
        return {"series": f"trainmaster_{name}{{{told}}}", "values": values}

    def expected(rule: Rule, at: str, *firing: dict[str, str]) -> dict[str, Any]:
        return {
            "eval_time": at,
            "alertname": rule.name,
            "exp_alerts": [
                {
                    "exp_labels": {
                        "severity": "warning",
                        "trainmaster_rule": rule.name,
                        "run": "ra",
                        **labels,
                    },
                    "exp_annotations": {
                        "summary": f"{rule.name}: {rule.metric} of run ra",
                        **({"description": rule.description} if rule.description else {}),
                    },
                }
                for labels in firing
            ],
        }

    where = {"rank": "0", "node": "n1", "stage": "0", "replica": "0"}
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump(
            {
                "rule_files": ["rules.yml"],
                "evaluation_interval": "15s",
                "tests": [
                    {
                        "interval": "15s",
                        "input_series": [
                            series("memory_used_ratio", "0.5 0.95x20", rank="0"),
                            series("memory_used_ratio", "0.5x21", rank="1"),
                            series("loss", "2 -Inf _ NaN 2x20", rank="0"),
                            series("device_utilization_ratio", "0.4x20", **where),
                            series("pipeline_bubble_ratio", "0.1 0.3x20", **where),
                        ],
                        "alert_rule_test": [
                            expected(rules[0], "1m"),
                            expected(rules[0], "2m", {}),
                            expected(rules[1], "15s", {}),
                            # A scrape that fails does not end it.
                            expected(rules[1], "30s", {}),
                            expected(rules[1], "105s", {}),
                            expected(rules[1], "135s"),
                            expected(rules[2], "0s"),
                            expected(rules[2], "15s", {"rank": "0", "node": "n1"}),
                        ],
                    }
                ],
            }
        )
    )
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yml")


def test_an_alert_carries_only_what_may_come_back_from_outside():
    assert promql.CARRIED == EXTERNAL_ACTIONS
    stacks = alert(mode="act", actions=[{"action": "dump_stacks"}])
    assert "trainmaster_action" not in stacks["labels"]
