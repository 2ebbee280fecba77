"""Commands against the real control plane, with no node connected to it."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from control import serving
from control.app import create_app
from control.clock import SystemClock
from control.db.sql import schema
from control.db.sql.engine import Database
from control.settings import Settings as ControlSettings
from trainmaster.cli.__main__ import build, run_command
from trainmaster.cli.output import Output
from trainmaster.cli.session import Session
from trainmaster.cli.settings import Settings
from trainmaster.home import Home

SPEC = """\
name: 训练 tiny
workload: worker.workloads.byte_gpt:workload
train:
  steps: 10
  global_batch: 16
parallel: {replicas: 2, stages: 2, micro_batch: 2}
rules: default
"""


@dataclass(frozen=True)
class Done:
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.stderr
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Terminal:
    """A person with a token at a control plane."""

    settings: Settings

    def __call__(self, *words: object) -> Done:
        out, err = io.StringIO(), io.StringIO()
        session = Session(self.settings, Output(out, err))
        status = run_command(build(), [str(word) for word in words], session)
        return Done(status, out.getvalue(), err.getvalue())

    def holding(self, token: str) -> Terminal:
        return Terminal(replace(self.settings, token=token))


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.database.parent.mkdir(parents=True)
    db = Database(f"sqlite:///{home.database}")
    schema.upgrade(db)
    settings, clock = ControlSettings(home), SystemClock()
    serving.prepare(settings, db, clock)
    config = uvicorn.Config(create_app(settings, db, clock), port=0, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Terminal(Settings(home, url=f"http://127.0.0.1:{port}"))
    server.should_exit = True
    thread.join(10)
    db.close()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def run(admin: Terminal, spec: Path) -> str:
    return str(admin("submit", spec, "--json").json["id"])


def test_a_run_without_a_node_queues_and_says_what_it_waits_for(admin: Terminal, run: str):
    deadline = time.monotonic() + 10
    while "node" not in admin("show", run, "--json").json["because"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    shown = admin("show", run, "--json").json
    assert (shown["state"], shown["name"], shown["target_steps"]) == ("queued", "训练 tiny", 10)
    assert run in admin("show", run).stdout
    assert "训练 tiny" in admin("runs").stdout
    assert admin("events", run, "--json").json[0]["kind"] == "run_submitted"
    assert admin("series", run, "loss", "--json").json["points"] == []
    for name in ("checkpoints", "alerts", "incidents"):
        assert admin(name, run, "--json").json == []
        assert admin(name, run).status == 0


def test_runs_are_listed_oldest_first(admin: Terminal, spec: Path):
    first, second = (admin("submit", spec, "--json").json["id"] for _ in range(2))
    assert [each["id"] for each in admin("runs", "--json").json][-2:] == [first, second]


def test_a_queued_run_is_paused_resumed_and_stopped(admin: Terminal, run: str):
    assert admin("pause", run, "--why", "lunch").status == 0
    assert admin("show", run, "--json").json["state"] == "paused"
    refused = admin("pause", run)
    assert refused.status == 4
    assert "paused" in refused.stderr
    assert admin("resume", run, "--no-wait").status == 0, "it is acknowledged once ranks train"
    assert admin("stop", run).status == 0
    assert admin("show", run, "--json").json["state"] == "stopped"
    why = [entry["why"] for entry in admin("audit", "--json").json if entry["target"] == run]
    assert "lunch" in why


@pytest.mark.parametrize(
    "words",
    [
        ["show", "nosuch"],
        ["events", "nosuch"],
        ["series", "nosuch", "loss"],
        ["checkpoints", "nosuch"],
        ["alerts", "nosuch"],
        ["incidents", "nosuch"],
        ["goodput", "nosuch"],
        ["pause", "nosuch"],
        ["restore", "nosuch", "r0-g1-s10"],
        ["verify", "nosuch-g1-s10"],
        ["pin", "nosuch-g1-s10"],
        ["rules", "show", "nosuch"],
        ["rules", "edit", "nosuch", "--set", "mode=act"],
        ["rules", "remove", "nosuch"],
        ["token", "revoke", "nosuch"],
        ["cordon", "nosuch"],
        ["show", "../../etc/passwd"],
        ["show", "x" * 3000],
        ["show", "🚂"],
        ["show", "\udcff"],
    ],
)
def test_what_is_not_there_is_status_2_and_a_sentence(admin: Terminal, words):
    done = admin(*words)
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert done.stderr.strip()


def test_an_unknown_rule_pack_has_its_line_in_the_file_and_nothing_is_stored(
    admin: Terminal, spec: Path
):
    before = len(admin("runs", "--json").json)
    spec.write_text(SPEC.replace("rules: default", "rules: nosuch"))
    done = admin("submit", spec)
    assert done.status == 2
    assert done.stderr.startswith(f"{spec}:7: rules: ")
    assert len(admin("runs", "--json").json) == before


def test_rules_are_added_edited_switched_and_removed(admin: Terminal, tmp_path: Path):
    path = tmp_path / "rules.yaml"
    path.write_text(
        "rules:\n  - {name: my rule, metric: loss, when: {condition: above, value: 9}}\n"
    )
    assert admin("rules", "add", path).status == 0
    assert admin("rules", "add", path).status in {2, 4}, "a name is there once"
    edited = admin("rules", "edit", "my rule", "--set", "when.value=7", "--json").json
    assert edited["when"]["value"] == 7
    assert admin("rules", "disable", "my rule", "--json").json["enabled"] is False
    assert admin("rules", "enable", "my rule", "--json").json["enabled"] is True
    assert "my rule" in admin("rules", "list").stdout
    assert "value: 7" in admin("rules", "show", "my rule").stdout
    wrong = admin("rules", "edit", "my rule", "--set", "mode=ponder")
    assert wrong.status == 2
    assert "mode" in wrong.stderr
    assert admin("rules", "remove", "my rule").status == 0
    assert admin("rules", "show", "my rule").status == 2


def test_roles_are_held_to(admin: Terminal, run: str):
    viewer = admin.holding(admin("token", "create", "--role", "viewer", "--json").json["token"])
    assert viewer("runs").status == 0
    assert viewer("rules", "list").status == 0
    for words in (["stop", run], ["rules", "disable", "low utilisation"], ["token", "list"]):
        assert viewer(*words).status == 4
    operator = admin.holding(admin("token", "create", "--role", "operator", "--json").json["token"])
    assert operator("stop", run).status == 0
    assert operator("token", "create", "--role", "viewer").status == 4
    made = admin("token", "create", "--role", "agent", "--node", "oak", "--json").json
    agent = admin.holding(made["token"])
    assert agent("runs").status == 4
    assert admin("token", "revoke", made["id"]).status == 0
    refused = agent("runs")
    assert refused.status == 4
    assert refused.stderr.count("\n") == 1


def test_an_agents_token_needs_a_node_and_others_have_none(admin: Terminal):
    assert admin("token", "create", "--role", "agent").status == 2
    assert admin("token", "create", "--role", "viewer", "--node", "oak").status == 2


def test_drills_are_refused_where_they_are_not_allowed(admin: Terminal, run: str):
    done = admin("drill", run, "kill")
    assert done.status == 4
    assert "TRAINMASTER_ALLOW_DRILLS" in done.stderr


def test_the_doctor_finds_the_control_plane_and_misses_the_nodes(admin: Terminal):
    checks = {check["name"]: check for check in admin("doctor", "--json").json}
    assert checks["control"]["state"] == "ok"
    assert checks["clock"]["state"] == "ok"
    assert checks["nodes"]["state"] == "warning"
