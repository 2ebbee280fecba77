"""Cluster files: what each agent is started with, and what is refused."""

from pathlib import Path

import pytest

from trainmaster.cli.cluster import read_cluster
from trainmaster.cli.documents import DocumentError
from trainmaster.cli.parts import Node, cluster_nodes, node_environment
from trainmaster.errors import UserError
from trainmaster.home import Home
from worker.agent.settings import Profile, emulation_of, read_profile

CLUSTER = """\
nodes:
  - {name: a100, slots: 2, labels: {room: left}}
  - name: v100
    slots: 4
    emulate: {speed: 0.5, memory_bytes: 1000000}
links:
  - {from: a100, to: v100, latency_ms: 5}
  - {from: v100, to: a100, latency_ms: 7, mbps: 100}
"""


PAIR = "nodes: [{name: a}, {name: b}]\n"


def written(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


def test_each_node_becomes_an_agent_with_slots_labels_and_profile(tmp_path: Path):
    nodes = cluster_nodes(read_cluster(written(tmp_path, CLUSTER)))
    assert [(node.name, node.slots, node.labels) for node in nodes] == [
        ("a100", 2, {"room": "left"}),
        ("v100", 4, {}),
    ]


def test_the_agent_reads_the_profile_that_up_writes(tmp_path: Path):
    home = Home(tmp_path / "home")
    _, v100 = cluster_nodes(read_cluster(written(tmp_path, CLUSTER)))
    environment = node_environment(home, v100)
    emulation = emulation_of(read_profile(Path(environment["TRAINMASTER_PROFILE"])), "v100")
    assert (emulation.speed, emulation.memory_bytes) == (0.5, 1_000_000)
    assert emulation.links["a100"].latency_ms == 7
    assert emulation.links["a100"].mbps == 100
    assert environment["TRAINMASTER_SLOTS"] == "4"


def test_a_figure_of_many_zeros_survives_the_way_to_the_agent(tmp_path: Path):
    text = "nodes: [{name: a, emulate: {layer_time_s: 0.00001}}]"
    [node] = cluster_nodes(read_cluster(written(tmp_path, text)))
    environment = node_environment(Home(tmp_path / "home"), node)
    profile = read_profile(Path(environment["TRAINMASTER_PROFILE"]))
    assert profile.emulate.layer_time_s == 1e-5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("emulate: {speed: 1e-320}", "emulate.speed: should be greater than"),
        ("emulate: {speed: [}", "is not YAML"),
        ("emulate: {speed: 0.5}\nemulate: {speed: 1}", "stands twice"),
        ("links: [{from: a, to: b}, {from: a, to: b}]", "more than one link leads from a to b"),
        ("colour: red", "colour"),
    ],
)
def test_what_is_wrong_with_a_profile_is_told(tmp_path: Path, text, said):
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_profile(path)


def test_a_profile_may_say_nothing(tmp_path: Path):
    path = tmp_path / "profile.yaml"
    path.write_text("# nothing\n")
    assert read_profile(path) == Profile()


def test_a_node_without_a_profile_leaves_the_agent_to_look_for_itself(tmp_path: Path):
    assert node_environment(Home(tmp_path), Node("here")) == {"TRAINMASTER_NODE_NAME": "here"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: []", "at least 1"),
        ("nodes: [{name: a}, {name: a}]", "more than one node is named a"),
        ("nodes: [{name: ../a}]", "must be 1 to 63"),
        ("nodes: [{name: a, slots: 0}]", "greater than or equal to 1"),
        ("nodes: [{name: a, emulate: {speed: 2}}]", "less than or equal to 1"),
        ("nodes: [{name: a, emulate: {speed: 1e-320}}]", "nodes.0..emulate.speed.*0.000001"),
        ("nodes: [{name: a, emulate: {speed: -1}}]", "greater than or equal to 0.000001"),
        ("nodes: [{name: a, emulate: {speed: .nan}}]", "finite number"),
        ("nodes: [{name: a, emulate: {speed: fast}}]", "valid number"),
        ("nodes: [{name: a, emulate: {layer_time_s: 1e308}}]", "less than or equal to 3600"),
        (
            "nodes: [{name: a, emulate: {layer_time_s: 1e-320}}]",
            "greater than or equal to 0.000000001",
        ),
        ("nodes: [{name: a, emulate: {layer_time_s: .inf}}]", "finite number"),
        ("nodes: [{name: a, emulate: {layer_time_s: '1'}}]", "valid number"),
        (f"nodes: [{{name: a, emulate: {{memory_bytes: 1{'0' * 400}}}}}]", "less than or equal to"),
        ("nodes: [{name: a, emulate: {memory_bytes: 1.5}}]", "valid integer"),
        ("nodes: [{name: a, emulate: {drift: {at_step: 1, speed: 1e-320}}}]", "0.000001"),
        ("nodes: [{name: a, name: b}]", "name"),
        ("nodes: [{name: a, slots: true}]", "valid integer"),
        ("nodes: [{name: a, labels: {room: 7}}]", "valid string"),
        ("nodes: [{name: a}]\nlinks: [{from: a, to: b}]", "names b"),
        (f"{PAIR}links: [{{from: a, to: b}}, {{from: a, to: b}}]", "more than one link leads"),
        (f"{PAIR}links: [{{from: a, to: b, latency_ms: -1}}]", "greater than or equal to 0"),
        (f"{PAIR}links: [{{from: a, to: b, latency_ms: 1e308}}]", "less than or equal to 3600000"),
        (f"{PAIR}links: [{{from: a, to: b, mbps: 0}}]", "greater than or equal to 0.000001"),
        (f"{PAIR}links: [{{from: a, to: b, mbps: 1e-320}}]", "greater than or equal to 0.000001"),
        (f"{PAIR}links: [{{from: a, to: b, mbps: .nan}}]", "finite number"),
        ("nodes: [{name: a}]\nlinks: [{from: a, to: a}]", "to itself"),
        ("nodes: [{name: a, colour: red}]", "not a known key"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(DocumentError, match=said) as caught:
        read_cluster(path)
    assert caught.value.message.startswith(f"{path}:")
