import pytest

from dashboard.plans import cluster_of, fewer_replicas, layout_of, layout_read, submittable
from trainmaster.document import parse, read
from trainmaster.errors import SpecError
from trainmaster.plan import ParallelAsk, Pipeline, Plan
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec

SPEC = """name: a
workload: worker.workloads.byte_gpt:workload
train: {steps: 10, global_batch: 32}
parallel: auto
"""
PLAN = Plan(
    micro_batch=4,
    schedule="1f1b",
    zero=1,
    bucket_bytes=4 << 20,
    pipelines=(
        Pipeline(layers=(5, 3), micro_batches=6, nodes=("oak", "elm")),
        Pipeline(layers=(4, 4), micro_batches=2, nodes=("oak", "elm")),
    ),
)


def test_a_found_plan_is_written_into_the_spec_and_resolves_to_itself() -> None:
    text = submittable(SPEC, {"plan": PLAN.model_dump(mode="json")})
    assert text is not None
    spec = parse(RunSpec, text)
    assert spec.name == "a"
    assert spec.parallel != "auto"
    assert resolve(spec.parallel, num_layers=8, global_batch=32) == PLAN


def test_what_is_no_plan_is_not_taken() -> None:
    assert submittable(SPEC, {"plan": {"pipelines": []}}) is None
    assert submittable("- a list", {"plan": PLAN.model_dump(mode="json")}) is None
    assert submittable("a: [", {"plan": PLAN.model_dump(mode="json")}) is None


def test_connected_nodes_become_a_cluster_file() -> None:
    nodes = [
        {"id": "oak", "slots": 2, "state": "present", "profile": {}},
        {
            "id": "elm",
            "slots": 2,
            "state": "late",
            "profile": {"speed": 0.5, "links": {"oak": {"latency_ms": 2.0, "mbps": 1000}}},
        },
        {"id": "gone", "slots": 2, "state": "lost", "profile": {}},
    ]
    assert read(cluster_of(nodes)).value == {
        "nodes": [
            {"name": "oak", "slots": 2},
            {"name": "elm", "slots": 2, "emulate": {"speed": 0.5}},
        ],
        "links": [{"from": "elm", "to": "oak", "latency_ms": 2.0, "mbps": 1000}],
    }


def test_the_layout_of_a_plan_resolves_to_it_without_its_nodes() -> None:
    ask = ParallelAsk.model_validate(layout_of(PLAN.model_dump(mode="json")))
    found = resolve(ask, num_layers=8, global_batch=32)
    assert [each.nodes for each in found.pipelines] == [(), ()]
    assert (found.shares, found.zero, found.bucket_bytes) == ([6, 2], 1, 4 << 20)


def test_fewer_replicas_do_all_micro_batches_between_them() -> None:
    ask = ParallelAsk.model_validate(fewer_replicas(PLAN.model_dump(mode="json"), 1))
    (pipeline,) = resolve(ask, num_layers=8, global_batch=32).pipelines
    assert (pipeline.layers, pipeline.micro_batches) == ((5, 3), 8)
    three = Plan(
        micro_batch=1, schedule="1f1b", pipelines=(Pipeline(layers=(8,), micro_batches=3),) * 3
    )
    told = fewer_replicas(three.model_dump(mode="json"), 2)
    assert [each["micro_batches"] for each in told["pipelines"]] == [5, 4]


def test_a_layout_is_read_with_or_without_its_key_and_told_what_is_wrong() -> None:
    assert layout_read("replicas: 2") == layout_read("parallel: {replicas: 2}") == {"replicas": 2}
    with pytest.raises(SpecError):
        layout_read("replicas: many")
    with pytest.raises(SpecError):
        layout_read("- 1")
