from dashboard.views.checkpoint_comparison import others_of


def test_a_checkpoint_is_compared_with_the_next_older_unless_another_is_chosen() -> None:
    assert others_of("c2", ["c4", "c3", "c2", "c1", "c0"]) == ["c1", "c0", "c3", "c4"]
    assert others_of("gone", ["c1"]) == []
    assert others_of("c1", ["c1"]) == []
