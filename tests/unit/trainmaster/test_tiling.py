from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.tilings import tilings
from trainmaster.checkpoint.tiling import Box, tiling_problem, whole_shape


@given(tiling=tilings())
def test_any_cut_of_a_tensor_tiles_it(tiling: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = tiling
    assert tiling_problem(boxes) is None
    assert whole_shape(boxes) == shape


@given(tiling=tilings(), data=st.data())
def test_leaving_out_or_doubling_a_part_is_noticed(
    tiling: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    shape, boxes = tiling
    solid = [box for box in boxes if box.volume]
    if not solid:
        return
    box = data.draw(st.sampled_from(solid))
    assert "overlap" in str(tiling_problem([*boxes, box]))
    rest = [other for other in boxes if other is not box]
    assert tiling_problem(rest) is not None or whole_shape(rest) != shape


@given(
    boxes=st.lists(
        st.tuples(st.tuples(*[st.integers(0, 3)] * 2), st.tuples(*[st.integers(0, 3)] * 2)).map(
            lambda pair: Box(*pair)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_verdict_agrees_with_counting_each_element(boxes: list[Box]) -> None:
    shape = whole_shape(boxes)
    counts = dict.fromkeys(product(*map(range, shape)), 0)
    for box in boxes:
        for point in product(
            *(range(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))
        ):
            counts[point] += 1
    assert (tiling_problem(boxes) is None) == all(count == 1 for count in counts.values())


def test_a_scalar_has_one_shard() -> None:
    scalar = Box((), ())
    assert tiling_problem([scalar]) is None
    assert whole_shape([scalar]) == ()
    assert "overlap" in str(tiling_problem([scalar, scalar]))


def test_many_shards_along_one_axis_are_judged_in_linear_time() -> None:
    boxes = [Box((0, index), (4, 1)) for index in range(50_000)]
    assert tiling_problem(boxes) is None
