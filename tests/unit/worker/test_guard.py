"""The status of a step: what ranks contribute, and what all of them read from the sum."""

from __future__ import annotations

import math

import pytest

from trainmaster.layout import roles
from trainmaster.orders import OrderWord
from trainmaster.plan import ParallelAsk, Plan
from trainmaster.resolution import resolve
from worker.gradients.norms import Norms
from worker.guard import NO_ORDER, Contribution, Status, StatusVector

PLAN = resolve(ParallelAsk(replicas=2, stages=2, micro_batch=1), num_layers=4, global_batch=8)


def seen(**changes: object) -> Contribution:
    values: dict[str, object] = {
        "losses": {},
        "own": Norms({}, 0),
        "summed": Norms({}, 0),
        "span_s": 0.0,
    }
    return Contribution(**(values | changes))  # type: ignore[arg-type]


def status(
    contributions: list[Contribution], plan: Plan = PLAN, *, is_ordered: bool = False
) -> Status:
    vector = StatusVector(plan, is_ordered=is_ordered)
    parts = [vector.encode(c, role) for c, role in zip(contributions, roles(plan), strict=True)]
    return vector.decode([sum(column) for column in zip(*parts, strict=True)])


def healthy() -> list[Contribution]:
    """Ranks 0 and 2 hold layers 0 and 1, ranks 1 and 3 the others; each layer's square is 4."""
    first, last = Norms({0: 4.0, 1: 4.0}, 0), Norms({2: 4.0, 3: 4.0}, 0)
    return [
        seen(own=first, summed=first, span_s=2.0),
        seen(own=last, summed=last, span_s=1.0, losses={0: (12.0, 4.0), 1: (18.0, 6.0)}),
        seen(own=first, summed=first, span_s=3.0),
        seen(own=last, summed=last, span_s=1.5, losses={4: (90.0, 30.0)}),
    ]


def test_loss_and_norm_are_of_the_mean_over_the_true_weight() -> None:
    result = status(healthy())
    assert (result.loss, result.weight) == (3.0, 40.0)
    assert result.grad_norm == math.sqrt(4 * 4.0) / 40
    assert result.because is None


def test_ordered_losses_are_added_up_micro_batch_by_micro_batch_whoever_saw_them() -> None:
    each = [(2.0**60, 1.0), (1.0, 1.0), (-(2.0**60), 1.0), *[(1.0, 1.0)] * 5]
    found = []
    for first in (1, 4, 7):
        parts = healthy()
        parts[1] = seen(losses=dict(enumerate(each[:first])))
        parts[3] = seen(losses=dict(enumerate(each[first:], start=first)))
        found.append(status(parts, is_ordered=True))
    assert [(one.loss, one.weight) for one in found] == [(5.0 / 8, 8.0)] * 3


def test_each_layer_counts_once_however_many_replicas_hold_it() -> None:
    one = resolve(ParallelAsk(stages=2, micro_batch=1), num_layers=4, global_batch=8)
    assert status(healthy()[:2], one).grad_norm * 10 == status(healthy()).grad_norm * 40


def test_with_zero_2_each_replica_speaks_for_its_rows() -> None:
    shared = PLAN.model_copy(update={"zero": 2})
    half = Norms({0: 2.0, 1: 2.0}, 0), Norms({2: 2.0, 3: 2.0}, 0)
    parts = [
        seen(own=whole.own, summed=rows, losses=whole.losses)
        for whole, rows in zip(healthy(), half * 2, strict=True)
    ]
    assert status(parts, shared).grad_norm == status(healthy()).grad_norm


def test_ranks_that_share_a_place_speak_once_for_what_they_all_saw() -> None:
    plan = Plan(micro_batch=1, schedule="1f1b", tensor=2, pipelines=PLAN.pipelines[:1])
    alike = [part for part in healthy()[:2] for _ in range(2)]
    result = status(alike, plan)
    assert (result.loss, result.weight) == (3.0, 10.0)
    assert result.spans_s == (2.0,)


def test_replicas_keep_their_own_norms_and_spans() -> None:
    result = status(healthy())
    assert result.replica_norms == (4.0, 4.0)
    assert result.spans_s == (2.0, 3.0), "from the first stages, which begin and end a pass"


def test_a_rank_that_saw_something_not_finite_is_named() -> None:
    parts = healthy()
    parts[3] = seen(
        own=Norms({2: math.nan, 3: 1.0}, 17),
        summed=Norms({2: math.nan}, 17),
        losses={4: (0.0, 30.0)},
    )
    result = status(parts)
    assert result.non_finite == (0, 0, 0, 17)
    assert result.because == "17 gradient or loss values on rank 3 were not finite"


def test_a_loss_that_is_not_finite_is_reason_enough() -> None:
    parts = healthy()
    parts[1] = seen(own=parts[1].own, summed=parts[1].summed, losses={0: (math.inf, 10.0)})
    result = status(parts)
    assert result.because == "1 gradient or loss values on rank 1 were not finite"
    assert math.isinf(result.loss)


def test_finite_gradients_may_add_up_to_one_that_is_not() -> None:
    parts = healthy()
    parts[0] = seen(own=parts[0].own, summed=Norms({0: math.inf}, 0))
    assert status(parts).because == (
        "finite gradients of the replicas add up to one that is not finite"
    )


def test_a_batch_without_weight_is_not_applied() -> None:
    parts = [seen(own=part.own, summed=part.summed) for part in healthy()]
    result = status(parts)
    assert result.because is not None
    assert "no weight" in result.because
    assert math.isnan(result.loss)


@pytest.mark.parametrize("word", list(OrderWord))
def test_everybody_hears_the_order_of_rank_0(word: OrderWord) -> None:
    parts = healthy()
    parts[0] = seen(own=parts[0].own, summed=parts[0].summed, order=(word, 2**40 + 1))
    assert status(parts).order == (word, 2**40 + 1)
    assert status(healthy()).order == NO_ORDER
