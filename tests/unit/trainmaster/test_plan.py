import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster import layout
from trainmaster.errors import SpecError
from trainmaster.plan import ParallelAsk, PipelineAsk, Plan, even_split
from trainmaster.resolution import plan_problems, resolve, workload_problems


def refusals(ask: ParallelAsk, *, num_layers: int = 8, global_batch: int = 64) -> str:
    with pytest.raises(SpecError) as caught:
        resolve(ask, num_layers=num_layers, global_batch=global_batch)
    return str(caught.value)


@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(8, 40),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_every_layer_and_every_sample_has_one_owner_per_replica_and_step(
    replicas, stages, num_layers, micro, per, padding
):
    micro_batches = per * replicas * stages
    ask = ParallelAsk(replicas=replicas, stages=stages, micro_batch=micro)
    global_batch = micro * micro_batches - (padding % micro if micro_batches > 1 else 0)
    plan = resolve(ask, num_layers=num_layers, global_batch=global_batch)
    roles = layout.roles(plan)
    assert [role.rank for role in roles] == list(range(plan.world_size))
    for replica in range(replicas):
        layers = [
            layer for rank in layout.replica_ranks(plan, replica) for layer in roles[rank].layers
        ]
        assert layers == list(range(num_layers))
    samples = [
        position
        for r in range(replicas)
        for position in range(*layout.sample_range(plan, r, global_batch))
    ]
    assert samples == list(range(global_batch))
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert Plan.model_validate(plan.model_dump(mode="json")) == plan


@given(st.integers(1, 100), st.integers(1, 100))
def test_an_even_split_differs_by_at_most_one(total, parts):
    counts = even_split(total, parts)
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1


def test_more_stages_than_layers_is_refused_with_both_numbers():
    assert "9 stages for 8 layers: at most 8" in refusals(ParallelAsk(stages=9, micro_batch=1))


def test_where_micro_batches_do_not_divide_the_batch_the_last_one_of_all_is_short():
    plan = resolve(ParallelAsk(replicas=2, micro_batch=7), num_layers=8, global_batch=64)
    assert plan.shares == [5, 5]
    assert [layout.sample_range(plan, replica, 64) for replica in (0, 1)] == [(0, 35), (35, 64)]
    assert "65 is more than train.global_batch 64" in refusals(ParallelAsk(micro_batch=65))
    assert "10 micro-batches cannot be shared evenly by 3 replicas" in refusals(
        ParallelAsk(replicas=3, micro_batch=7)
    )
    ask = ParallelAsk(replicas=2, micro_batch=7, shares=[6, 5])
    assert "global_batch is 64: it takes 10" in refusals(ask)


def test_one_f_one_b_with_fewer_micro_batches_than_stages_is_refused_with_a_proposal():
    text = refusals(ParallelAsk(stages=4, micro_batch=32))
    assert "2 micro-batches for 4 stages" in text
    assert "gpipe" in text
    assert resolve(
        ParallelAsk(stages=4, micro_batch=32, schedule="gpipe"), num_layers=8, global_batch=64
    )


def test_unproven_cells_are_refused_by_name_all_at_once():
    ask = ParallelAsk(zero=3, tensor=2, schedule="zbv_zero_bubble", recompute="selective")
    text = refusals(ask)
    for field in ("zero", "tensor", "recompute"):
        assert f"parallel.{field}" in text
    text = refusals(ParallelAsk(schedule="backwards", offload="parameters"))
    assert "'backwards' is not known; this version runs 1f1b, dualpipev" in text
    assert "'parameters' needs zero 3" in text


def test_zero_3_with_unequal_shares_is_refused_with_both():
    ask = ParallelAsk(zero=3, replicas=2, micro_batch=8, shares=[6, 2])
    assert "[6, 2] differ; use zero 2" in refusals(ask)


def test_a_plan_from_elsewhere_is_held_to_the_same_cells():
    plan = resolve(ParallelAsk(micro_batch=8), num_layers=8, global_batch=64)
    other = plan.model_copy(update={"zero": 3, "tensor": 2})
    told = plan_problems(other, num_layers=8, global_batch=64)
    assert [problem.path for problem in told] == ["parallel.tensor"]
    assert not plan_problems(plan, num_layers=8, global_batch=64)


@pytest.mark.parametrize(
    ("schedule", "stages_of_rank_0"),
    [("interleaved_1f1b", [(0, 2), (4, 6)]), ("zbv_zero_bubble", [(0, 2), (6, 8)])],
)
def test_virtual_stages_are_dealt_out_as_the_schedule_says(schedule, stages_of_rank_0):
    ask = ParallelAsk(schedule=schedule, stages=2, micro_batch=8)
    plan = resolve(ask, num_layers=8, global_batch=64)
    assert (plan.virtual, plan.stages, plan.world_size) == (2, 2, 2)
    first, last = layout.roles(plan)
    assert [(each.first_layer, each.end_layer) for each in first.stages] == stages_of_rank_0
    assert sorted(first.layers + last.layers) == list(range(8))
    assert first.is_first_stage
    assert {first.is_last_stage, last.is_last_stage} == {True, False}
    assert "exactly 1 stage per rank" in refusals(ParallelAsk(virtual=2, micro_batch=8))


def test_more_virtual_stages_than_layers_are_refused_with_the_numbers():
    ask = ParallelAsk(schedule="interleaved_1f1b", stages=4, virtual=3, micro_batch=1)
    assert "12 stages for 8 layers: at most 8 stages are possible (3 to a rank)" in refusals(ask)


def test_stages_that_cannot_be_dealt_out_are_refused():
    cut = [PipelineAsk(layers=[3, 3, 2], micro_batches=8)]
    ask = ParallelAsk(schedule="interleaved_1f1b", micro_batch=8, pipelines=cut)
    assert "3 stages cannot be dealt out 2 to a rank" in refusals(ask)


def test_the_ranks_of_a_place_share_its_layers_and_each_part_has_its_own_segments():
    plan = Plan(
        micro_batch=1,
        schedule="1f1b",
        tensor=2,
        pipelines=resolve(
            ParallelAsk(replicas=2, stages=2, micro_batch=1), num_layers=4, global_batch=8
        ).pipelines,
    )
    assert plan.world_size == 8
    assert layout.place_ranks(plan, 1, 0) == (4, 5)
    assert layout.replica_ranks(plan, 1, tensor=1) == (5, 7)
    assert [each.ranks for each in layout.segments(plan, 1)] == [(1, 5), (3, 7)]


def test_uneven_shares_and_layers_are_kept_as_asked():
    ask = ParallelAsk(replicas=2, stages=2, micro_batch=8, layers=[[0, 3], [3, 8]], shares=[6, 2])
    plan = resolve(ask, num_layers=8, global_batch=64)
    assert plan.shares == [6, 2]
    assert plan.layers == [[0, 3], [3, 8]]


def test_shares_that_do_not_make_the_batch_are_refused_with_the_arithmetic():
    text = refusals(ParallelAsk(replicas=2, micro_batch=8, shares=[6, 3]))
    assert "9 micro-batches of 8 samples make 72, but train.global_batch is 64" in text


@pytest.mark.parametrize(
    "layers", [[[0, 4]], [[0, 4], [5, 8]], [[0, 4], [4, 7]], [[4, 8], [0, 4]], [[0], [4, 8]], []]
)
def test_layer_ranges_with_gaps_or_wrong_counts_are_refused(layers):
    assert "parallel.layers" in refusals(ParallelAsk(stages=2, micro_batch=8, layers=layers))


RAGGED = [
    PipelineAsk(layers=[1, 3, 4], micro_batches=4),
    PipelineAsk(layers=[2, 6], micro_batches=4),
]


def test_ragged_pipelines_share_gradients_by_segments_that_nobody_cuts():
    ask = ParallelAsk(micro_batch=8, pipelines=RAGGED)
    plan = resolve(ask, num_layers=8, global_batch=64)
    assert plan.is_ragged
    assert plan.world_size == 5
    found = [(each.first_layer, each.end_layer, each.ranks) for each in layout.segments(plan)]
    assert found == [(0, 1, (0, 3)), (1, 2, (1, 3)), (2, 4, (1, 4)), (4, 8, (2, 4))]


def test_the_default_micro_batch_gives_each_stage_enough_work():
    plan = resolve(ParallelAsk(replicas=2, stages=2), num_layers=8, global_batch=64)
    assert plan.micro_batch == 4
    assert plan.shares == [8, 8]


def test_what_a_workload_does_not_allow_is_refused_with_what_would_do():
    ask = ParallelAsk(replicas=2, tensor=4, zero=1, micro_batch=8)
    plan = resolve(ask, num_layers=8, global_batch=64)

    def told(units: int | None, own: bool) -> list[tuple[str, str]]:
        found = workload_problems(plan, tensor_units=units, brings_optimizer=own)
        return [(problem.path, problem.message) for problem in found]

    assert told(8, False) == []
    assert told(None, False) == [
        ("parallel.tensor", "4 needs a workload that has tensor_parallel(layer); use 1")
    ]
    assert told(6, False) == [
        ("parallel.tensor", "4 ranks cannot share 6 units evenly; 3 would fit")
    ]
    assert [path for path, _ in told(8, True)] == ["parallel.tensor", "parallel.zero"]


def test_a_bucket_holds_at_least_a_byte():
    assert resolve(ParallelAsk(bucket_mb=5e-324), num_layers=8, global_batch=64).bucket_bytes == 1


def test_more_ranks_than_can_be_laid_out_are_refused_before_they_are():
    told = refusals(ParallelAsk(replicas=1 << 24, micro_batch=1), global_batch=1 << 24)
    assert "16777216 ranks; at most 65536" in told
