"""What the simulation gives in the plain cases, and the textbook's own values (planner
specification, C1).
"""

from __future__ import annotations

import itertools

import pytest

from control.planner import textbook
from control.planner.simulate import (
    Costs,
    gpipe,
    in_flight,
    one_f_one_b,
    run,
    run_order,
)
from trainmaster.schedules import KNOWN, order_of, stage_rank

GIB = 1 << 30


def even(stages, forward, backward, weights=0.5):
    return Costs.without_links([forward] * stages, [backward] * stages, weights=weights)


@pytest.mark.parametrize("simulate", [gpipe, one_f_one_b])
def test_g1_four_stages_eight_micro_batches(simulate):
    end = simulate(even(4, 1, 2), 8).end
    assert end == 33 == textbook.even_makespan(4, 8, 1, 2)
    assert end / 24 - 1 == pytest.approx(0.375) == textbook.bubble_overhead(4, 8)
    assert 1 - 24 / end == pytest.approx(3 / 11) == textbook.bubble_share(4, 8)


def test_g2_overhead_and_share_are_two_things():
    end = gpipe(even(8, 1, 2), 4).end
    assert end / 12 - 1 == pytest.approx(1.75) == textbook.bubble_overhead(8, 4)
    assert 12 / end == pytest.approx(0.363636, abs=1e-6)
    assert 1 - 12 / end == pytest.approx(0.636364, abs=1e-6) == textbook.bubble_share(8, 4)


def test_g3_interleaved_two_stages_per_rank():
    times, _ = run("interleaved_1f1b", even(8, 0.5, 1), 4, 2, 8)
    assert times.end == 28.5
    assert times.end - 24 == 4.5
    assert times.end / 24 - 1 == 0.1875 == textbook.bubble_overhead(4, 8, 2)
    assert in_flight(order_of("interleaved_1f1b", 4, 2, 8)) == [11, 9, 7, 5]


def test_g4_micro_batches_in_flight():
    assert in_flight(order_of("1f1b", 4, 1, 8)) == [4, 3, 2, 1]
    assert in_flight(order_of("gpipe", 4, 1, 8)) == [8, 8, 8, 8]


def test_g5_zero_bubble_h1():
    costs = even(4, 1, 2, weights=0.4)
    order = order_of("interleaved_zero_bubble", 4, 1, 8)
    times, _ = run_order("interleaved_zero_bubble", order, costs, 1)
    assert times.end == pytest.approx(28.2)
    assert times.end - 24 == pytest.approx(textbook.zero_bubble_overhead_s(4, 1, 1.2, 0.8))
    assert one_f_one_b(costs, 8).end == 33
    assert max(in_flight(order)) == 4


@pytest.mark.parametrize("name", KNOWN)
def test_no_schedule_beats_the_work_or_loses_an_action(name):
    for ranks, n in itertools.product((1, 2, 4), (8, 12)):
        virtual = KNOWN[name].virtual or 2
        if KNOWN[name].refusal(ranks=ranks, virtual=virtual, micro_batches=n):
            continue
        times, bars = run(name, even(ranks * virtual, 1, 2), ranks, virtual, n)
        assert times.end >= 3 * virtual * n - 1e-9
        assert sum(bar.end_s - bar.start_s for bar in bars) == pytest.approx(
            3 * ranks * virtual * n
        )
        for bar in bars:
            assert stage_rank(name, ranks, virtual, bar.action.stage) == bar.rank
        if ranks == 1:
            assert times.end == pytest.approx(3 * virtual * n)


@pytest.mark.parametrize(("simulate", "name"), [(gpipe, "gpipe"), (one_f_one_b, "1f1b")])
def test_the_fast_simulations_equal_the_general_one(simulate, name):
    costs = Costs(
        (1.0, 0.4, 2.0, 0.7),
        (2.0, 0.9, 3.5, 1.1),
        (0.3, 1.7, 0.2),
        (0.1, 0.0, 0.4),
        (0.2, 0.1, 2.2),
        (0.0, 0.3, 0.1),
    )
    for n in (4, 5, 9, 40, 200):
        fast, (slow, _) = simulate(costs, n), run(name, costs, 4, 1, n)
        assert fast.end == pytest.approx(slow.end, rel=1e-12)
        assert fast.stage_ends == pytest.approx(slow.stage_ends, rel=1e-12)


def test_g6_zero_levels():
    expected = {0: 120.0, 1: 31.40625, 2: 16.640625, 3: 1.875}
    for level, gigabytes in expected.items():
        assert 7.5 * textbook.zero_bytes_per_param(level, 64) == pytest.approx(gigabytes)


def test_g7_deepspeeds_estimate():
    device, offloaded, host = textbook.offloaded_zero2_bytes(2851e6, 8)
    assert device / GIB == pytest.approx(15.93, abs=0.005)
    assert offloaded / GIB == pytest.approx(5.31, abs=0.005)
    assert host / GIB == pytest.approx(127.45, abs=0.005)


def test_g8_megatrons_table():
    told = {
        name: (own + shared, own + shared / 8)
        for name, (own, shared) in textbook.ADAM_BYTES.items()
    }
    assert told == {"fp16": (20, 6), "bf16, fp32 gradients": (18, 7.5), "fp32": (16, 9)}


def test_g9_parameters_of_a_transformer():
    assert textbook.transformer_params(96, 12288, 51200, 2048) == pytest.approx(
        174_615_822_336, abs=1
    )
    assert textbook.transformer_params(128, 25600, 51200, 2048) == pytest.approx(
        1_008_038_707_200, abs=1
    )


def test_g10_flop_of_an_iteration():
    flop = textbook.transformer_flops(2304, 2048, 80, 12288, 51200)
    assert flop == pytest.approx(5.642e18, rel=1e-3)
    assert flop / (1536 * 148e12) == pytest.approx(24.82, abs=0.005)


def test_g11_checkpoint_intervals():
    stall_s = 175e9 * 14 / 100e9
    assert stall_s == 24.5
    assert textbook.young_interval_s(stall_s, 14400) == pytest.approx(840.0, abs=0.005)
    daly = textbook.daly_interval_s(stall_s, 14400)
    assert daly == pytest.approx(823.75, abs=0.005)
    steps = [700 + 0.25 * each for each in range(1000)]
    best = min(steps, key=lambda tau: textbook.checkpoint_overhead(tau, stall_s, 14400))
    assert best == pytest.approx(823.75, abs=0.3)


def test_g12_ring_and_tree():
    ring = textbook.ring_s(1e9, 256, 5e-6, 50e9)
    assert ring == pytest.approx(42.39375e-3)
    assert textbook.tree_s(1e9, 256, 5e-6, 50e9) == pytest.approx(320.08e-3)
    assert textbook.crossover_bytes(5e-6, 50e9) == pytest.approx(250e3)


def test_g13_a_ring_sends_twice_what_a_reduce_scatter_does():
    assert textbook.ring_bytes(100e6, 8) == (175e6, 14)


def test_g14_the_linear_rule():
    assert textbook.scaled_lr(0.1, 256, 8192) == pytest.approx(3.2)
    assert textbook.scaled_lr(0.1, 512, 4096) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("workers", "first", "noam"), [(16, 15, 2), (4, 1, 4), (4, 4, 1), (8, 7, 2)]
)
def test_g16_pipedreams_noam(workers, first, noam):
    assert textbook.optimal_micro_batches_in_flight(workers, first) == noam


def test_g17_activations_of_a_layer():
    whole = textbook.transformer_activations(2048, 1, 12288, 96)
    rest = textbook.transformer_activations(2048, 1, 12288, 96, with_core=False)
    assert (whole, rest) == (2_868_903_936, 855_638_016)
    assert 1 - rest / whole == pytest.approx(0.7018, abs=5e-5)


def test_g18_a_message():
    assert 32 * 2048 * 2048 * 4 == 536_870_912 == 512 << 20


def test_g19_sums_every_fourth_micro_step():
    share, time = textbook.synced_less_often(0.35, 4)
    assert share == pytest.approx(0.11864, abs=1e-5)
    assert time == pytest.approx(0.7375)


def test_g20_dualpipe():
    assert textbook.dualpipe_bubble_s(16, 2.5, 2, 1) == 10.5
    assert textbook.zero_bubble_overhead_s(16, 1, 2 - 1, 1) == 15
    assert (16 - 1) * (1 + 2) == 45


def test_more_nodes_fail_more_often():
    assert textbook.cluster_mtbf_s([1000.0] * 4) == pytest.approx(250)
    alone, _ = textbook.goodput_samples_per_s(64, 1.0, stall_s=1.0, mtbf_s=1e6)
    among, steps = textbook.goodput_samples_per_s(64, 1.0, stall_s=1.0, mtbf_s=1e3)
    assert among < alone < 64
    assert steps == round(textbook.daly_interval_s(1.0, 1e3))


def test_zero_traffic():
    assert textbook.zero_traffic(1, 8e6, 8) == pytest.approx(textbook.ring_bytes(8e6, 8)[0])
    assert textbook.zero_traffic(2, 8e6, 8, 4) == pytest.approx(5 * 7e6)
    assert textbook.zero_traffic(3, 8e6, 8) == pytest.approx(3 * 7e6)
