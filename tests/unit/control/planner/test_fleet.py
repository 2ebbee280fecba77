"""From a spec and nodes to a plan that the runtime carries out."""

from __future__ import annotations

import random

import pytest

from control.planner.answer import asked_for, told
from control.planner.fleet import asked, divisors, fleet_scenario, runnable
from control.planner.machine import Machine, stated_link
from control.planner.search import quick, search
from trainmaster.document import Document, validate
from trainmaster.errors import SpecError
from trainmaster.layout import nodes_of
from trainmaster.plan import Plan
from trainmaster.resolution import plan_problems, workload_problems
from trainmaster.spec import RunSpec
from trainmaster.wire import WorkloadInfo
from worker.groups import refuse_mixture, replicas_cross

LAYER = {"forward_flops": 1e9, "parameters": 10_000, "output_bytes": 4096}
WORKLOAD = WorkloadInfo(
    num_layers=8,
    layers=[{"index": at, **LAYER} for at in range(8)],
    num_parameters=80_000,
    num_samples=64,
    code_sha256="0" * 64,
)


def spec(**parallel) -> RunSpec:
    return validate(
        RunSpec,
        Document(
            {
                "name": "tiny",
                "workload": "somewhere:workload",
                "train": {"steps": 10, "global_batch": 24},
                **({"parallel": parallel} if parallel else {}),
            }
        ),
    )


def test_a_plan_for_unequal_machines_runs_and_beats_the_even_one():
    machines = [
        Machine("fast", layer_time_s=0.01),
        Machine("slow", layer_time_s=0.03),
        Machine("far", layer_time_s=0.01, links={"fast": (0.2, None), "slow": (0.2, None)}),
    ]
    scenario = fleet_scenario(machines, spec(), WORKLOAD)
    found = search(scenario)
    plan = runnable(found, spec(), WORKLOAD)
    assert not plan_problems(plan, num_layers=8, global_batch=24)
    assert plan.predicted.step_time_s == found.verdict.step_s
    assert len(plan.predicted.memory_bytes) == plan.world_size
    even = validate(
        RunSpec, Document({**spec().model_dump(), "parallel": {"stages": 2, "micro_batch": 2}})
    )
    slower = asked_for(scenario, asked(even, WORKLOAD))
    assert found.verdict.step_s < slower.verdict.step_s


def test_sums_in_float32_take_half_the_memory_and_the_wire():
    machines = [Machine(name, layer_time_s=0.01) for name in ("one", "two")]
    exact = spec(replicas=2, micro_batch=2)
    train = {**exact.train.model_dump(), "gradient_sums": "float32"}
    rounded = validate(RunSpec, Document({**exact.model_dump(), "train": train}))
    wide, narrow = (fleet_scenario(machines, each, WORKLOAD) for each in (exact, rounded))
    assert (wide.grad_bytes, narrow.grad_bytes) == (8.0, 4.0)
    memory = [
        runnable(asked_for(scenario, asked(each, WORKLOAD)), each, WORKLOAD).predicted.memory_bytes
        for scenario, each in ((wide, exact), (narrow, rounded))
    ]
    saved = [before - after for before, after in zip(*memory, strict=True)]
    assert saved == pytest.approx([4 * WORKLOAD.num_parameters] * 2)


@pytest.mark.parametrize("micro", [1, 24])
def test_no_pipeline_gets_fewer_micro_batches_than_1f1b_needs(micro):
    machines = [Machine(f"m{at}", layer_time_s=0.01 * (at + 1)) for at in range(4)]
    scenario = fleet_scenario(machines, spec(), WORKLOAD)
    found = search(scenario.replaced(schedules=("1f1b",), micro_batches=(micro,)))
    for pipe in found.draft.pipes:
        assert pipe.micro_batches >= len(pipe.kinds)


def test_slots_of_a_machine_are_nodes_of_their_own():
    scenario = fleet_scenario([Machine("m", slots=3, speed=0.5)], spec(), WORKLOAD)
    assert scenario.names == ("m/0", "m/1", "m/2")
    assert scenario.counts == (3,)
    plan = runnable(search(scenario), spec(), WORKLOAD)
    assert {node for each in plan.pipelines for node in each.nodes} == {"m"}


@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zbv_zero_bubble", 2), ("dualpipev", 2)],
)
def test_a_plan_that_is_asked_for_is_predicted_under_any_schedule(schedule, virtual):
    asking = spec(stages=2, micro_batch=3, schedule=schedule, virtual=virtual)
    machines = [Machine("a", layer_time_s=0.01), Machine("b", layer_time_s=0.01)]
    scenario = fleet_scenario(machines, asking, WORKLOAD)
    found = asked_for(scenario, asked(asking, WORKLOAD))
    work = 8 * 8 * 0.03 / 2
    assert work <= found.verdict.step_s < 1.6 * work


def test_a_plan_that_does_not_fit_is_refused_with_the_numbers():
    machines = [Machine("a", layer_time_s=0.01, memory_bytes=1000)]
    scenario = fleet_scenario(machines, spec(replicas=1), WORKLOAD)
    with pytest.raises(SpecError, match=r"needs .* bytes, its node has 1000"):
        asked_for(scenario, asked(spec(replicas=1), WORKLOAD))
    with pytest.raises(SpecError, match="fits in no way"):
        search(scenario)
    with pytest.raises(SpecError, match="as many free slots"):
        asked_for(scenario, asked(spec(replicas=2), WORKLOAD))


@pytest.mark.parametrize("total", [1, 2, 12, 36, 97, 360])
def test_divisors(total):
    assert divisors(total) == [size for size in range(1, total + 1) if total % size == 0]


def test_without_machines_or_figures_nothing_is_guessed():
    with pytest.raises(SpecError, match="no node"):
        fleet_scenario([], spec(), WORKLOAD)
    bare = WORKLOAD.model_copy(update={"layers": [{"index": 0}]})
    with pytest.raises(SpecError, match="layer 0 was described without 'forward_flops'"):
        fleet_scenario([Machine("m")], spec(), bare)
    warnings = fleet_scenario([Machine("m")], spec(), WORKLOAD).warnings
    assert any("no calibration" in each for each in warnings)
    assert any("memory" in each for each in warnings)


def test_the_runtimes_rings_are_as_slow_as_the_slowest_link_among_their_nodes():
    far = {"b": (0.5, None)}
    near = [Machine(name, layer_time_s=0.01) for name in "abc"]
    machines = [Machine("a", layer_time_s=0.01, links=far), *near[1:]]
    asking = spec(replicas=3, micro_batch=2)
    took = [
        asked_for(fleet_scenario(each, asking, WORKLOAD), asked(asking, WORKLOAD)).verdict.step_s
        for each in (near, machines)
    ]
    # Four messages in turn, each over the link from a to b, though a ring could go without it.
    assert took[1] - took[0] == pytest.approx(4 * 0.5, rel=1e-3)


def optimized_by(asking: RunSpec, optimizer: str, batch: int) -> RunSpec:
    told = asking.model_dump(mode="json")
    told["train"] |= {"global_batch": batch, "optimizer": {"name": optimizer}}
    return validate(RunSpec, Document(told))


def refuse_on_devices(
    plan: Plan, machines: list[Machine], asking: RunSpec, workload: WorkloadInfo
) -> None:
    """Refuse what ranks find out only when they meet, and see of what kind their devices are."""
    kind_of = {machine.name: machine.device for machine in machines}
    kinds = [kind_of[str(node)] for node in nodes_of(plan)]
    refuse_mixture(plan, kinds)
    if workload.brings_optimizer or asking.train.optimizer.name == "adafactor":
        assert plan.tensor == 1
        assert plan.replicas == 1 or (plan.zero == 0 and not replicas_cross(plan, kinds))


@pytest.mark.parametrize("choose", [search, quick])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_an_optimizer_that_needs_whole_parameters_gets_replicas_on_one_kind(choose, optimizer):
    machines = [Machine("a", 2, layer_time_s=0.02), Machine("b", 2, layer_time_s=0.01, device="x")]
    asking = optimized_by(spec(), optimizer, 24)
    workload = WORKLOAD.model_copy(update={"tensor_units": 4})
    plan = runnable(choose(fleet_scenario(machines, asking, workload)), asking, workload)
    assert {str(node) for node in nodes_of(plan)} == (
        {"b"} if optimizer == "adafactor" else {"a", "b"}
    )
    refuse_on_devices(plan, machines, asking, workload)


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_planned_fits_and_is_what_the_runtime_takes(seed):
    draw = random.Random(seed)
    device = draw.choice(["cpu", "cuda"])
    layers = [
        {
            "index": at,
            "forward_flops": draw.choice([1e8, 1e9]),
            "parameters": draw.choice([1e5, 1e6, 4e6]),
            "split_parameters": draw.choice([0, 1e5]),
            "output_bytes": 4096,
        }
        for at in range(draw.randint(1, 9))
    ]
    workload = WORKLOAD.model_copy(
        update={
            "num_layers": len(layers),
            "layers": layers,
            "tensor_units": draw.choice([None, 4]),
            "brings_optimizer": draw.random() < 0.2,
        }
    )
    machines = [
        Machine(
            f"m{at}",
            slots=draw.choice([1, 1, 2, 4]),
            layer_time_s=draw.choice([0.01, 0.02, 0.05]),
            memory_bytes=draw.choice([None, 30_000_000, 80_000_000]),
            links={"m0": (0.05, draw.choice([None, 1e7]))},
            memory_bytes_per_s=draw.choice([None, 1e10]),
            device=draw.choice([device, device, "emu"]),
        )
        for at in range(draw.randint(1, 4))
    ]
    batch = draw.choice([1, 7, 24, 97])
    asking = optimized_by(spec(), draw.choice(["adamw", "adamw", "adafactor"]), batch)
    scenario = fleet_scenario(machines, asking, workload)
    for seek in (quick, search):
        try:
            found = seek(scenario)
        except SpecError:
            continue  # it fits in no way
        assert found.model.fits(found.draft)
        plan = runnable(found, asking, workload)
        assert not plan_problems(plan, num_layers=len(layers), global_batch=batch)
        assert not workload_problems(
            plan,
            tensor_units=workload.tensor_units,
            brings_optimizer=workload.brings_optimizer,
        )
        refuse_on_devices(plan, machines, asking, workload)
        again = asked_for(scenario, plan)
        assert again.verdict.step_s <= found.verdict.step_s * (1 + 1e-6)
        told(found, 0.1)


@pytest.mark.parametrize("machines", [4, 8])
def test_a_thorough_search_is_never_worse_than_a_quick_one(machines):
    names = [f"m{at}" for at in range(machines)]
    link = stated_link(1.0, 100.0)
    fleet = [
        Machine(
            name,
            slots=4,
            layer_time_s=0.01 * (1 + at % 3),
            links={other: link for other in names if other != name},
        )
        for at, name in enumerate(names)
    ]
    scenario = fleet_scenario(fleet, spec(), WORKLOAD)
    assert search(scenario).verdict.step_s <= quick(scenario).verdict.step_s
