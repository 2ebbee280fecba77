"""Built-in orders are valid and equal those of torch; bad numbers are refused with proposals."""

from __future__ import annotations

import itertools
from importlib.metadata import EntryPoint

import pytest
import torch
from torch.distributed.pipelining import schedules as of_torch
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

from trainmaster import plugins, schedules
from trainmaster.errors import ConflictError, UserError
from trainmaster.schedules import KNOWN, Action, Kind, Schedule, order_of, stage_rank
from trainmaster.testing.schedule_contract import ScheduleContract

GRID = [
    (name, ranks, virtual, micro_batches)
    for name in KNOWN
    for ranks, virtual, micro_batches in itertools.product(
        range(1, 6), (1, 2, 3), (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
    )
    if KNOWN[name].refusal(ranks=ranks, virtual=virtual, micro_batches=micro_batches) is None
]


TAKEN = Schedule("gpipe", lambda ranks, virtual, micro_batches: ())


class FakeGroup:
    """Enough of a process group to construct a stage."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class FakeStage:
    """Enough of a stage for a schedule to generate its order."""

    def __init__(self, stage_index: int, num_stages: int, rank: int, size: int) -> None:
        self.stage_index, self.num_stages = stage_index, num_stages
        self.group, self.group_rank, self.group_size = FakeGroup(rank, size), rank, size
        self.is_first, self.is_last = stage_index == 0, stage_index == num_stages - 1
        self.has_backward = True
        self.device = torch.device("cpu")
        self.submod = torch.nn.Identity()
        self.stage_index_to_group_rank: dict[int, int] = {}


def torch_order(name: str, ranks: int, virtual: int, micro_batches: int):
    schedule_class = of_torch.get_schedule_class(KNOWN[name].torch_class)
    num_stages = ranks * virtual
    stages = [
        FakeStage(stage, num_stages, 0, ranks)
        for stage in schedules.stages_of(name, ranks, virtual, 0)
    ]
    single = issubclass(schedule_class, of_torch.PipelineScheduleSingle)
    made = schedule_class(
        stages[0] if single else stages, n_microbatches=micro_batches, loss_fn=lambda a, b: a
    )
    order = [tuple(_flat(made.pipeline_order[rank])) for rank in range(ranks)]
    if name == "1f1b":
        # The list of torch 2.13 numbers the last stage's forwards from 1; what it runs begins at 0.
        order[-1] = tuple(
            action._replace(micro_batch=action.micro_batch - (action.kind is Kind.FORWARD))
            for action in order[-1]
        )
    return tuple(order)


def _flat(actions):
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            yield from _flat(action.sub_actions)
        elif action.computation_type.value in {"F", "B", "I", "W"}:
            yield Action(
                action.stage_index, Kind(action.computation_type.value), action.microbatch_index
            )


@pytest.mark.parametrize("name", KNOWN)
def test_an_order_is_complete_and_never_waits_for_ever(name):
    cases = [case for case in GRID if case[0] == name]
    assert len(cases) > 10
    for _, ranks, virtual, micro_batches in cases:
        order = order_of(name, ranks, virtual, micro_batches)
        assert schedules.problem_of(order, KNOWN[name], virtual, micro_batches) is None


@pytest.mark.parametrize("name", KNOWN)
def test_an_order_is_the_one_that_torch_generates(name):
    for _, ranks, virtual, micro_batches in (case for case in GRID if case[0] == name):
        ours = order_of(name, ranks, virtual, micro_batches)
        assert ours == torch_order(name, ranks, virtual, micro_batches), (
            ranks,
            virtual,
            micro_batches,
        )


@pytest.mark.parametrize("name", KNOWN)
def test_stages_are_dealt_out_as_torch_does(name):
    style = KNOWN[name].placement
    virtual = KNOWN[name].virtual or 3
    for ranks in range(1, 6):
        expected = generate_stage_to_rank_mapping(ranks, ranks * virtual, style=style)
        ours = {stage: stage_rank(name, ranks, virtual, stage) for stage in expected}
        assert ours == expected


def test_what_torch_fuses_is_fused():
    order = order_of("zbv_zero_bubble", 2, 2, 4)
    raw = [
        of_torch._Action(a.stage, of_torch._ComputationType(a.kind), a.micro_batch)
        for a in order[0]
    ]
    merged = [
        (a.stage_index, a.computation_type.value, a.microbatch_index)
        for a in of_torch._merge_bw(raw)
    ]
    assert [tuple(action) for action in schedules.fused(order[0])] == merged


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("1f1b", (4, 1, 3), "3 micro-batches for 4 stages"),
        ("1f1b", (4, 2, 8), "use virtual 1, not 2"),
        ("gpipe", (0, 1, 8), "at least 1 for ranks, not 0"),
        ("gpipe", (2, 1, 0), "at least 1 for micro-batches, not 0"),
        ("interleaved_1f1b", (4, 2, 9), "2 rounds of equal size on 4 ranks.*use 8 or 12"),
        ("interleaved_zero_bubble", (2, 2, 5), "use 4 or 6"),
        ("zbv_zero_bubble", (4, 1, 8), "exactly 2 stages per rank: use virtual 2, not 1"),
        ("dualpipev", (4, 2, 7), "7 micro-batches for 8 stages"),
        ("1f2b", (2, 1, 4), "no pipeline schedule '1f2b'; known are gpipe, 1f1b"),
    ],
)
def test_numbers_that_no_order_exists_for_are_refused_by_name(name, numbers, expected):
    with pytest.raises(UserError, match=expected):
        order_of(name, *numbers)


def test_proposals_of_rounds_would_do():
    for ranks, micro_batches in itertools.product(range(1, 7), range(1, 30)):
        schedule = KNOWN["interleaved_1f1b"]
        refusal = schedule.refusal(ranks=ranks, virtual=2, micro_batches=micro_batches)
        if refusal is None:
            continue
        below, above = (int(word) for word in refusal.rpartition("use ")[2].split(" or "))
        for proposed in (below, above):
            assert schedule.refusal(ranks=ranks, virtual=2, micro_batches=proposed) is None


def problem_of_1f1b(order):
    return schedules.problem_of(order, KNOWN["1f1b"], 1, 2)


def test_a_broken_order_is_told_where_it_breaks():
    good = order_of("1f1b", 2, 1, 2)
    swapped = (good[0], good[1][1:2] + good[1][0:1] + good[1][2:])
    assert "stands before 1F0" in (problem_of_1f1b(swapped) or "")
    assert "missing" in (problem_of_1f1b((good[0][:-1], good[1])) or "")
    twice = (good[0] + good[0][:1], good[1])
    assert "twice" in (problem_of_1f1b(twice) or "")
    late = (good[0], tuple(reversed(good[1][:2])) + good[1][2:])
    assert problem_of_1f1b(late) is not None
    ahead = (
        tuple(Action(0, kind, each) for each in range(2) for kind in (Kind.FORWARD, Kind.BACKWARD)),
        tuple(Action(1, kind, each) for kind in (Kind.FORWARD, Kind.BACKWARD) for each in range(2)),
    )
    assert "waits for ever before" in (problem_of_1f1b(ahead) or "")


def test_a_name_is_taken_once():
    with pytest.raises(ConflictError, match="gpipe"):
        schedules.add(TAKEN)


def test_what_an_entry_point_names_must_be_a_schedule():
    group = plugins.SCHEDULE_GROUP
    with pytest.raises(UserError, match=r"mine.*cannot be loaded"):
        plugins.add_schedules([EntryPoint("mine", "no_such_module:it", group)])
    with pytest.raises(UserError, match=r"mine.*is a dict, not"):
        plugins.add_schedules([EntryPoint("mine", "trainmaster.schedules:KNOWN", group)])
    with pytest.raises(ConflictError, match="gpipe"):
        plugins.add_schedules([EntryPoint("mine", f"{__name__}:TAKEN", group)])


class TestBuiltIn(ScheduleContract):
    """They come through the same door as those of third parties."""

    @pytest.fixture(params=sorted(KNOWN))
    def schedule(self, request):
        return KNOWN[request.param]
