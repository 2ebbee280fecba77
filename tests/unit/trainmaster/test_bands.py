from trainmaster import bands
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve


def told(*, global_batch: int, **ask: object) -> list[str]:
    plan = resolve(ParallelAsk(**ask), num_layers=16, global_batch=global_batch)
    return bands.left(plan, global_batch=global_batch)


def test_a_plan_within_all_bands_is_told_nothing():
    assert told(global_batch=512, replicas=2, stages=4, micro_batch=64, schedule="gpipe") == []
    assert told(global_batch=512, replicas=2, stages=4, micro_batch=32) == []


def test_each_band_that_is_left_is_told_with_the_numbers_and_its_limits():
    found = told(global_batch=64, replicas=2, stages=2, micro_batch=1)
    assert len(found) == 4
    assert "16 for each of 4 ranks, fewer than 32 to 64" in found[0]
    assert "64 samples a step are fewer than 512" in found[1]
    assert "32 micro-batches a step, outside of 4 to 8" in found[2]
    assert "2 stages lie outside of 4 to 16" in found[3]


def test_what_a_pipeline_has_not_is_not_judged():
    assert told(global_batch=512, replicas=8, micro_batch=2) == []


def test_passes_count_as_what_a_step_takes():
    assert told(global_batch=128, replicas=8, micro_batch=16, sync_every=4) == []
