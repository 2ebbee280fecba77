"""docker-compose.yml and what it points at: what a schema cannot see, checked without an engine."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.private_server import absent
from worker.agent.settings import read_profile

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCUMENT: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
ONE_SHOT = {"migrate", "tokens"}


def mounts() -> Iterator[tuple[str, str]]:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            yield name, volume.split(":")[0]


def words(command: str | list[str]) -> list[str]:
    return command.split() if isinstance(command, str) else command


def builds() -> list[tuple[str, dict[str, Any]]]:
    return [(name, service["build"]) for name, service in SERVICES.items() if "build" in service]


def test_it_is_valid_by_the_compose_specification() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", COMPOSE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_of_an_installation_is_there() -> None:
    ours = {"postgres", "migrate", "control", "control-b", "dashboard"}
    assert set(SERVICES) >= ours | {"prometheus", "alertmanager", "grafana"}
    agents = [s for s in SERVICES.values() if "worker.agent" in s.get("command", [])]
    names = {agent["environment"]["TRAINMASTER_NODE_NAME"] for agent in agents}
    assert len(agents) == len(names) == 2, "agents of one name would push each other out"


def test_whoever_speaks_to_the_control_plane_knows_all_of_them() -> None:
    told = [
        service["environment"]["TRAINMASTER_URL"].split(",")
        for service in SERVICES.values()
        if "TRAINMASTER_URL" in service.get("environment", {})
    ]
    assert len(told) == 5
    for urls in told:
        assert urls == ["http://control:8700", "http://control-b:8700"]


def test_each_agent_is_reached_by_the_name_it_gives() -> None:
    for name, service in SERVICES.items():
        address = service.get("environment", {}).get("TRAINMASTER_ADDRESS")
        assert address in {None, name}, f"{name} says it is reached as {address}"


def test_mounted_files_exist_and_named_volumes_are_declared() -> None:
    for name, source in mounts():
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{name} mounts {source}, which is not there"
        else:
            assert source in DOCUMENT["volumes"], f"{name} mounts an undeclared volume {source}"
    assert set(DOCUMENT["volumes"]) == {s for _, s in mounts() if not s.startswith(".")}


def test_whoever_writes_a_volume_mounts_it_first() -> None:
    """An empty volume takes its owner from the folder that it covers in the first container that
    mounts it.
    """
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, _, *mode = volume.split(":")
            if source.startswith(".") or mode != ["ro"]:
                continue
            writers = {
                other
                for other, each in SERVICES.items()
                for mounted in each.get("volumes", [])
                if mounted.startswith(f"{source}:") and not mounted.endswith(":ro")
            }
            assert writers & set(service["depends_on"]), f"{name} may mount {source} first"


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(re.match(r"127\.0\.0\.1:", port) for port in ports), ports


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        tag = service["image"].partition(":")[2]
        assert re.match(r"v?\d", tag), f"{name}: {service['image']} follows a moving tag"


def test_the_database_volume_is_where_this_major_version_keeps_its_data() -> None:
    # From 18 on the image refuses this path.
    assert SERVICES["postgres"]["image"].startswith("postgres:17")
    assert "postgres:/var/lib/postgresql/data" in SERVICES["postgres"]["volumes"]


def test_what_others_wait_for_can_happen() -> None:
    for name, service in SERVICES.items():
        for other, wait in service.get("depends_on", {}).items():
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for ever for {other}"
            if wait["condition"] == "service_completed_successfully":
                assert other in ONE_SHOT, f"{name} waits for {other}, which does not end"
    for name, service in SERVICES.items():
        if name in ONE_SHOT:
            assert service["restart"] == "no"
        else:
            assert "healthcheck" in service, f"nobody would notice that {name} hangs"


def test_no_secret_stands_in_the_file() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN$|SECRET", variable):
                assert str(value).startswith("${"), f"{name}: {variable} is written in the clear"
            for password in re.findall(r"://[^:/@]+:([^@]*)@", str(value)):
                assert password.startswith("${"), f"{name}: {variable} carries a password"


def test_every_command_of_ours_is_in_the_code() -> None:
    for name, service in SERVICES.items():
        command = words(service.get("command", []))
        if command[:2] == ["python", "-m"]:
            module = ROOT.joinpath(*command[2].split("."))
            assert (module / "__main__.py").is_file() or module.with_suffix(".py").is_file(), (
                f"{name} runs {command[2]}"
            )
            if len(command) > 3:
                assert f'"{command[3]}"' in (module / "__main__.py").read_text()
        elif command[:2] == ["streamlit", "run"]:
            assert (ROOT / command[2]).is_file(), f"{name} runs {command[2]}"
        elif "build" in service:
            assert (ROOT / command[0]).stat().st_mode & 0o100, f"{name} runs {command[0]}"


def test_every_setting_given_is_one_that_a_process_reads() -> None:
    code = "".join(
        path.read_text()
        for package in ("control", "worker", "dashboard", "trainmaster")
        for path in (ROOT / package).rglob("*.py")
    )
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            setting = variable.removeprefix("TRAINMASTER_")
            if setting != variable:
                # A settings module may add the prefix itself.
                assert variable in code or f'("{setting}"' in code, f"{name}: {variable} is unread"


def test_images_are_built_from_stages_that_exist() -> None:
    assert builds()
    for name, build in builds():
        text = (ROOT / build["context"] / build["dockerfile"]).read_text()
        stages = re.findall(r"^FROM \S+ AS (\S+)$", text, flags=re.MULTILINE)
        assert build["target"] in stages, f"{name} builds {build['target']}"
        for argument in build.get("args", {}):
            assert re.search(rf"^ARG {argument}\b", text, flags=re.MULTILINE), argument


def test_no_image_of_ours_runs_as_root_and_all_it_copies_exists() -> None:
    text = (ROOT / "deploy/image/Dockerfile").read_text()
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE):
        if "\nCMD" in stage:
            assert "\nUSER trainmaster\n" in stage
        for line in re.findall(r"^COPY (?!--from)(.*)$", stage, flags=re.MULTILINE):
            for source in line.split()[:-1]:
                assert (ROOT / source).exists(), f"the image copies {source}"


def test_prometheus_is_given_the_token_and_the_address_that_the_stack_has() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    planes = [name for name, service in SERVICES.items() if "serve" in service.get("command", [])]
    assert len(planes) == 2
    targets = {"targets": [f"{name}:8700" for name in planes]}
    assert jobs["trainmaster-control"]["static_configs"] == [targets]
    discoveries = jobs["trainmaster-agents"]["http_sd_configs"]
    for name, discovery in zip(planes, discoveries, strict=True):
        assert discovery["url"] == f"http://{name}:8700/v1/prometheus/targets"
        assert discovery["authorization"]["type"] == "Bearer"
    for job in (*jobs.values(), *discoveries):
        assert job["authorization"]["credentials_file"] == "/run/trainmaster/prometheus.token"


@pytest.mark.prometheus
def test_promtool_accepts_the_configuration_and_the_rules_fire_as_written() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        absent("Prometheus' promtool")
    for check in (
        ["check", "config", "--syntax-only", "prometheus.yml"],
        ["check", "rules", "rules.yml", "trainmaster.rules.yml"],
        ["test", "rules", "rules_test.yml"],
    ):
        done = subprocess.run(
            [promtool, *check],
            cwd=ROOT / "deploy/prometheus",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_amtool_accepts_how_alerts_come_back() -> None:
    amtool = shutil.which("amtool")
    if amtool is None:
        absent("Alertmanager's amtool")
    path = ROOT / "deploy/alertmanager/alertmanager.yml"
    done = subprocess.run(
        [amtool, "check-config", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_come_back_with_a_token_that_agents_cannot_read() -> None:
    config = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())
    [receiver] = config["receivers"]
    planes = [name for name, service in SERVICES.items() if "serve" in service.get("command", [])]
    assert [each["url"] for each in receiver["webhook_configs"]] == [
        f"http://{name}:8700/v1/alertmanager" for name in planes
    ]
    for webhook in receiver["webhook_configs"]:
        token = webhook["http_config"]["authorization"]["credentials_file"]
        assert token == "/run/alertmanager/alertmanager.token"
    holders = {name for name, source in mounts() if source == "operators"}
    assert holders == {"tokens", "alertmanager"}


def test_nothing_changes_its_image_or_gains_rights() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # PostgreSQL's image begins as root and changes to its own user.
        assert name == "postgres" or service["cap_drop"] == ["ALL"], name
        assert "user" not in service, f"{name}: its image says which"
        assert not service.get("privileged"), name


def test_the_two_nodes_are_not_alike() -> None:
    profiles = [
        read_profile(ROOT / source)
        for name, source in mounts()
        if name.startswith("node-") and source.startswith("./deploy/compose/")
    ]
    assert len(profiles) == 2
    first, second = (profile.emulate.speed for profile in profiles)
    assert first != second
    names = {link.source for profile in profiles for link in profile.links}
    assert names == {"node-a", "node-b"}


def test_agents_listen_where_their_health_is_asked() -> None:
    for name in ("node-a", "node-b"):
        port = SERVICES[name]["environment"]["TRAINMASTER_METRICS_PORT"]
        command = SERVICES[name]["healthcheck"]["test"]
        assert command[2] == f"http://127.0.0.1:{port}/metrics"
        assert (ROOT / command[1]).stat().st_mode & 0o100
