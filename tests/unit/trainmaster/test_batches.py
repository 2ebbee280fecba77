import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainmaster import batches

ranges = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 30)).map(
        lambda each: (each[0], each[0] + each[1])
    ),
    max_size=8,
)


def members(found: tuple[tuple[int, int], ...]) -> set[int]:
    return {batch for first, last in found for batch in range(first, last + 1)}


@given(ranges)
def test_normalising_keeps_the_set_and_leaves_no_two_ranges_touching(given_ranges):
    normal = batches.normalise(given_ranges)
    assert members(normal) == members(tuple(given_ranges))
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(normal))
    assert batches.normalise(normal) == normal


@given(ranges, st.integers(1, 400))
def test_step_s_takes_the_s_th_batch_that_is_not_skipped(given_ranges, step):
    skip = batches.normalise(given_ranges)
    skipped = members(skip)
    taken = [batch for batch in range(1, 2000) if batch not in skipped]
    assert batches.batch_of_step(step, skip) == taken[step - 1]


@given(ranges, st.integers(0, 100), st.integers(0, 40))
def test_skipping_after_a_step_changes_no_earlier_step_and_moves_the_later_ones(
    given_ranges, step, count
):
    before = batches.normalise(given_ranges)
    own = batches.batches_of_steps(step + 1, step + count, before)
    after = batches.normalise((*before, *own))
    for earlier in range(1, step + 1):
        assert batches.batch_of_step(earlier, after) == batches.batch_of_step(earlier, before)
    assert batches.batch_of_step(step + 1, after) == batches.batch_of_step(step + 1 + count, before)


def test_steps_after_a_skip_name_the_batches_they_consumed():
    assert batches.batches_of_steps(40, 43, ((41, 42),)) == ((40, 40), (43, 45))


@given(st.integers(1, 9), st.integers(0, 30))
def test_passes_follow_each_other_without_a_gap_and_grow_to_what_was_asked(sync_every, ramp):
    found = [batches.passes_of(batch, sync_every, ramp) for batch in range(1, ramp + 4)]
    assert [each for run in found for each in run] == list(range(1, found[-1][-1] + 1))
    sizes = [len(run) for run in found]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1
    assert sizes[max(0, ramp - 1) :] == [sync_every] * (len(sizes) - max(0, ramp - 1))


def test_a_ramp_is_linear():
    assert [len(batches.passes_of(batch, 4, 8)) for batch in range(1, 10)] == [
        *(1, 1, 2, 2, 3, 3, 4, 4, 4)
    ]
