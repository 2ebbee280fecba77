"""Who keeps a copy of whose part."""

import random

from trainmaster.neighbours import keepers, ranks_by_node, receivers


def test_one_node_has_no_neighbour() -> None:
    assert receivers(["a", "a", "a"]) == [None, None, None]
    assert keepers(["a", "a", "a"]) == [frozenset("a")]


def test_each_node_keeps_the_parts_of_the_one_before_it() -> None:
    assert receivers(["a", "a", "b", "b", "c", "c"]) == [2, 3, 4, 5, 0, 1]
    assert keepers(["a", "a", "b", "c"]) == [frozenset("ab"), frozenset("bc"), frozenset("ca")]


def test_the_end_of_any_one_node_loses_nothing() -> None:
    draw = random.Random(3)
    for _ in range(200):
        nodes = [draw.choice("abcd") for _ in range(draw.randint(2, 12))]
        to = receivers(nodes)
        for lost in set(nodes):
            if len(set(nodes)) == 1:
                continue
            for rank, node in enumerate(nodes):
                receiver = to[rank]
                assert receiver is not None
                assert node != lost or nodes[receiver] != lost


def test_a_rank_receives_about_as_much_as_any_other_of_its_node() -> None:
    nodes = ["a"] * 5 + ["b"] * 2
    counts = [receivers(nodes).count(rank) for rank in ranks_by_node(nodes)["b"]]
    assert sorted(counts) == [2, 3]
