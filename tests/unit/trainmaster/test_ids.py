import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster import ids


@given(st.integers(1, 10**6), st.integers(0, 10**9))
def test_a_checkpoint_id_reads_back(generation, step):
    made = ids.checkpoint_id("ralpha1", generation, step)
    assert ids.parse_checkpoint_id(made) == ("ralpha1", generation, step)


@pytest.mark.parametrize(
    "text", ["", "x", "ralpha-g1", "ralpha-g1-s", "../g1-s1", "ralpha-g1-s-1", "r-g1-s1\n"]
)
def test_what_is_no_checkpoint_id_is_none(text):
    assert ids.parse_checkpoint_id(text) is None


def test_a_rank_stream_reads_back():
    assert ids.parse_rank_stream(ids.rank_stream("ralpha", 3, 1)) == ("ralpha", 3, 1)


@pytest.mark.parametrize("text", ["agent", "a/b/c", "a/1", "a/1/2/3", "a/-1/2"])
def test_other_streams_are_not_a_ranks(text):
    assert ids.parse_rank_stream(text) is None


@pytest.mark.parametrize(
    "node", ["..", "a..b", "", "-x", "A", "con", "nul.txt", "a/b", "x" * 64, "é"]
)
def test_node_ids_that_could_be_paths_or_devices_are_refused(node):
    assert ids.node_id_problem(node)


@pytest.mark.parametrize("node", ["oak", "node-1", "10.0.0.7", "rack_3.a"])
def test_plain_node_ids_are_taken(node):
    assert ids.node_id_problem(node) is None


@pytest.mark.parametrize(
    ("machine", "node"),
    [("Oak", "oak"), ("gpu box (2)", "gpu-box-2"), ("..", "node"), ("NUL.local", "node")],
)
def test_a_machines_name_becomes_a_nodes_id_with_little_change(machine, node):
    assert ids.node_id_of(machine) == node
