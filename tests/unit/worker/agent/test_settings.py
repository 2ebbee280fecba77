"""Settings of the agent: defaults, precedence, and sentences for what cannot be used."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trainmaster.errors import UserError
from trainmaster.home import Home
from trainmaster.ids import node_id_of
from trainmaster.wire import Device
from worker.agent.devices import device_of_slot, find_devices, parse_nvidia_smi, seen_of
from worker.agent.settings import LIBRARY_TUNING, MIN_SLOTS, default_slots, read


def env(home: Path, **more: str) -> dict[str, str]:
    return {"TRAINMASTER_HOME": str(home), "TRAINMASTER_TOKEN": "t", **more}


def test_everything_has_a_default_but_the_token(tmp_path: Path):
    settings = read([], env(tmp_path))
    assert settings.url == "http://127.0.0.1:8700"
    assert settings.node == node_id_of(socket.gethostname())
    assert (settings.process_name, settings.nest_name) == ("agent", "nest")
    assert settings.slots is None
    with pytest.raises(UserError, match="token create --role agent"):
        read([], {"TRAINMASTER_HOME": str(tmp_path)})


def test_the_command_line_wins(tmp_path: Path):
    more = {"TRAINMASTER_NODE_NAME": "a", "TRAINMASTER_SLOTS": "2"}
    settings = read(["--name", "b", "--slots", "3"], env(tmp_path, **more))
    assert (settings.node, settings.slots) == ("b", 3)


def test_the_port_of_the_installation_gives_the_address(tmp_path: Path):
    assert read([], env(tmp_path, TRAINMASTER_PORT="9")).url == "http://127.0.0.1:9"


def test_a_token_may_lie_in_a_file_or_in_the_state_directory(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("from-file\n")
    found = read([], {"TRAINMASTER_HOME": str(tmp_path), "TRAINMASTER_TOKEN_FILE": str(file)})
    assert found.token == "from-file"
    Home(tmp_path).write_token("stored", "agent-n1")
    assert read(["--name", "n1"], {"TRAINMASTER_HOME": str(tmp_path)}).token == "stored"


def test_states_are_kept_in_shared_memory_elsewhere_or_not_at_all(tmp_path: Path):
    assert read([], env(tmp_path)).memory == Path("/dev/shm")  # the default
    assert read([], env(tmp_path, TRAINMASTER_MEMORY="/mnt/ram")).memory == Path("/mnt/ram")
    assert read([], env(tmp_path, TRAINMASTER_MEMORY="off")).memory is None
    with pytest.raises(UserError, match="TRAINMASTER_MEMORY is 'ram'; write an absolute path"):
        read([], env(tmp_path, TRAINMASTER_MEMORY="ram"))


def test_metrics_are_open_to_anyone_only_when_asked_for(tmp_path: Path):
    assert read([], env(tmp_path)).metrics_open is False
    assert read([], env(tmp_path, TRAINMASTER_METRICS_OPEN="1")).metrics_open is True
    with pytest.raises(UserError, match="TRAINMASTER_METRICS_OPEN"):
        read([], env(tmp_path, TRAINMASTER_METRICS_OPEN="maybe"))


def test_ranks_inherit_no_secret_of_ours(tmp_path: Path):
    more = {"TRAINMASTER_METRICS_TOKEN": "m", "PATH": "/bin"}
    settings = read([], env(tmp_path, **more))
    inherited = settings.nest_environment
    assert not {"TRAINMASTER_TOKEN", "TRAINMASTER_METRICS_TOKEN"} & inherited.keys()
    assert inherited["PATH"] == "/bin"
    assert inherited["OMP_NUM_THREADS"] == "1"
    assert inherited["TRAINMASTER_CACHE"] == str(tmp_path / "cache")
    assert inherited["GLOO_SOCKET_IFNAME"] == "lo"
    assert inherited["GLIBC_TUNABLES"] == LIBRARY_TUNING
    told = {"OMP_NUM_THREADS": "4", "GLIBC_TUNABLES": "glibc.malloc.check=0"}
    chosen = read([], env(tmp_path, **told)).nest_environment
    assert told.items() <= chosen.items()


def test_a_profile_gives_labels_emulation_and_own_links(tmp_path: Path):
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "labels: {room: a}\n"
        "emulate: {speed: 0.5}\n"
        "links: [{from: n1, to: n2, latency_ms: 2, mbps: 100}, {from: n2, to: n1}]\n"
    )
    settings = read(["--name", "n1", "--profile", str(profile)], env(tmp_path))
    assert settings.labels == {"room": "a"}
    assert settings.emulation.speed == 0.5
    assert {name: link.mbps for name, link in settings.emulation.links.items()} == {"n2": 100}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("emulate: {kind: cuda}", "emulate.kind"),
        ("speed: 2", "speed"),
        ("emulate: {speed: 2}", "emulate.speed"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_profile_is_told_by_field(tmp_path: Path, text: str, told: str):
    profile = tmp_path / "profile.yaml"
    profile.write_text(text)
    with pytest.raises(UserError, match=told):
        read([], env(tmp_path, TRAINMASTER_PROFILE=str(profile)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRAINMASTER_SLOTS", "many"),
        ("TRAINMASTER_SLOTS", "0"),
        ("TRAINMASTER_DEVICES", "gpu"),
        ("TRAINMASTER_METRICS_PORT", "70000"),
        ("TRAINMASTER_NODE_NAME", "../up"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(tmp_path: Path, name: str, value: str):
    with pytest.raises(UserError, match=name):
        read([], env(tmp_path, **{name: value}))


def test_names_of_processes_go_in_pairs(tmp_path: Path):
    settings = read([], env(tmp_path, TRAINMASTER_PROCESS_NAME="agent:n1"))
    assert settings.nest_name == "nest:n1"


def test_slots_follow_the_devices():
    assert default_slots(["cuda", "cuda"]) == 2
    assert default_slots(["cpu"]) >= MIN_SLOTS


def test_a_slot_has_a_device_of_its_node():
    gpus = [Device(kind="cuda", name="A100", memory_bytes=1) for _ in range(2)]
    found = [device_of_slot(gpus, slot) for slot in range(3)]
    assert [(each.kind, each.index) for each in found] == [("cuda", 0), ("cuda", 1), ("cuda", 0)]
    host = [Device(kind="cpu", name="CPU", memory_bytes=1)]
    assert [device_of_slot(host, slot).index for slot in range(3)] == [0, 0, 0]


def test_an_emulated_kind_is_told_as_the_nodes_and_computes_on_its_cpu():
    [device] = find_devices(claimed_kind="emu-a", claimed_memory_bytes=1 << 30)
    assert (device.kind, device.memory_bytes) == ("emu-a", 1 << 30)


def test_a_node_may_leave_its_cuda_devices_alone(tmp_path: Path):
    assert read([], env(tmp_path)).use_cuda
    assert not read([], env(tmp_path, TRAINMASTER_DEVICES="cpu")).use_cuda


def test_devices_in_an_error_state_are_left_out():
    listing = (
        "0, GPU-a1, NVIDIA A100, 40960\n1, GPU-b2, GPU is lost, [Unknown Error]\n"
        "2, GPU-c3, Tesla V100-PCIE, 16384\n"
    )
    devices = parse_nvidia_smi(listing)
    assert [device.index for device in devices] == [0, 2]
    assert [each.index for each in seen_of(devices, "2,GPU-a,7,0")] == [2, 0]
    assert seen_of(devices, "") == []
    assert [(device.name, device.memory_bytes >> 30) for device in devices] == [
        ("NVIDIA A100", 40),
        ("Tesla V100-PCIE", 16),
    ]
