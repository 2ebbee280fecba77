"""docs/operations.md, and the alerts that are shipped: of metrics that there are, each with what to
do; and nothing fires while nothing goes on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.prometheus import promql
from control.rules import packs
from scripts.generate_docs import EXPORTERS, families
from tests.services.private_server import absent
from trainmaster.metrics import BY_NAME

ROOT = Path(__file__).parents[2]
PACKS = ("rules.yml", "trainmaster.rules.yml")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
# Names of labels, of files, and of what rules record, which look like a metric's.
NO_METRICS = {"trainmaster_action", "trainmaster_rule"}
IDLE = {
    'trainmaster_run_state{run="ra1", state="running"}': "0x60",
    'trainmaster_run_state{run="ra1", state="queued"}': "1x60",
    'trainmaster_step{run="ra1", rank="0", node="oak"}': "0x60",
    'trainmaster_tokens_total{run="ra1", rank="0", node="oak"}': "0x60",
    'trainmaster_failed_steps_total{run="ra1", rank="0", node="oak"}': "0x60",
    'trainmaster_step_duration_seconds_count{run="ra1", rank="0", node="oak"}': "0x60",
    'trainmaster_step_duration_seconds_sum{run="ra1", rank="0", node="oak"}': "0x60",
    'trainmaster_control_leads{instance="control:8700"}': "1x60",
    'trainmaster_control_turns_total{instance="control:8700", outcome="failed"}': "0x60",
    'trainmaster_control_work_total{work="tick", outcome="failed"}': "0x60",
    'trainmaster_queue_oldest_seconds{queue="turns"}': "0x60",
    'trainmaster_notifications{state="failed"}': "0x60",
    'trainmaster_agent_silence_seconds{node="oak"}': "1x60",
    'trainmaster_agent_unsent_bytes{node="oak"}': "0x60",
    'up{job="trainmaster-control", instance="control:8700"}': "1x60",
    'up{job="trainmaster-agents", instance="oak:9100"}': "1x60",
}


def shipped() -> list[dict[str, Any]]:
    """All rules of the files that are shipped."""
    return [
        rule
        for name in PACKS
        for group in yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())["groups"]
        for rule in group["rules"]
    ]


def exported() -> set[str]:
    """Names of all families."""
    found = {name for _, path in EXPORTERS for name, _, _ in families(ROOT / path)}
    return found | {metric.prometheus for metric in BY_NAME.values() if metric.prometheus}


def alerts() -> list[str]:
    return [rule["alert"] for rule in shipped() if "alert" in rule]


def test_every_alert_says_what_it_is_and_operations_say_what_to_do():
    assert len(alerts()) == len(set(alerts())) > 15
    for rule in shipped():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert rule["annotations"]["summary"]
    told = set(re.findall(r"`(Trainmaster[A-Za-z]+)`", OPERATIONS))
    assert told == set(alerts())


def test_every_metric_of_ourselves_says_when_to_look():
    own = {
        name
        for _, path in EXPORTERS
        if path.endswith(("vitals.py", "process_metrics.py"))
        for name, _, _ in families(ROOT / path)
    }
    assert len(own) > 20
    assert {name for name in own if f"`{name}`" not in OPERATIONS} == set()


@pytest.mark.parametrize(
    "page",
    [
        *(f"deploy/prometheus/{name}" for name in PACKS),
        *(f"docs/{name}.md" for name in ("operations", "alerts", "prometheus", "grafana")),
    ],
)
def test_every_metric_that_is_spoken_of_is_exported(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    spoken = set(re.findall(r"\b(trainmaster_[a-z_]+)(?![a-z_.-]*\.(?:md|yml|py))", text))
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in spoken - NO_METRICS}
    assert stems - exported() == set()


@pytest.mark.prometheus
def test_a_m19_an_idle_run_raises_no_alert(tmp_path: Path):
    if shutil.which("promtool") is None:
        absent("Prometheus' promtool")
    rules = [rule for pack in packs.NAMES for rule in packs.load(pack)]
    own = promql.export({rule.name: rule for rule in rules}.values()).groups
    (tmp_path / "exported.yml").write_text(yaml.safe_dump({"groups": own}))
    names = [
        *alerts(),
        *(each["alert"] for group in own for each in group["rules"] if "alert" in each),
    ]
    assert len(names) > 20
    cases = {
        "rule_files": ["exported.yml", *(str(ROOT / "deploy/prometheus" / name) for name in PACKS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": title,
                "interval": "1m",
                "input_series": [{"series": key, "values": told} for key, told in series.items()],
                "alert_rule_test": [
                    {"eval_time": at, "alertname": name, "exp_alerts": []}
                    for name in names
                    for at in ("5m", "55m")
                ],
            }
            for title, series in (("a run that waits", IDLE), ("nothing at all", {}))
        ],
    }
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    done = subprocess.run(
        ["promtool", "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_boards_carry_no_alert_of_their_own():
    for path in (ROOT / "deploy/grafana").rglob("*.json"):
        assert '"alert"' not in path.read_text(encoding="utf-8"), path
