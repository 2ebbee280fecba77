"""The newest state outlives its ranks in their nodes' memory, and a run goes on from there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.distributed.ranks import Generation, plan_of, started, tiny_spec, trained
from trainmaster.orders import Order
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import Resume

STEPS = 4


def killed(folder: Path, spec: RunSpec, plan: Plan) -> Generation:
    """A generation that is held after its first step, keeps the state of that, and is killed."""
    hold, save = Order(seq=1, kind="hold"), Order(seq=2, kind="checkpoint")
    with started(folder, spec, plan, orders=[hold], memory=True) as generation:
        if spec.checkpoint.memory_every_steps == 0:
            generation.tell(save)
        generation.wait_for(lambda: generation.events("state_kept"))
        for process in generation.processes:
            process.kill()
        generation.join()
    return generation


def resume_of(told: dict[str, object]) -> Resume:
    """The state that an event tells of, as the control plane would name it."""
    names = ("checkpoint", "step", "location", "manifest_sha256")
    return Resume.model_validate({name: told[name] for name in names})


def spec_of(corpus: Path, **checkpoint: object) -> RunSpec:
    spec = tiny_spec(corpus, steps=STEPS)
    return spec.model_copy(
        update={"checkpoint": spec.checkpoint.model_copy(update=dict(checkpoint))}
    )


def placed(plan: Plan, *nodes: str) -> Plan:
    """One replica on each of the nodes."""
    pipelines = tuple(
        each.model_copy(update={"nodes": (node,)})
        for each, node in zip(plan.pipelines, nodes, strict=True)
    )
    return plan.model_copy(update={"pipelines": pipelines})


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Generation:
    spec = spec_of(corpus)
    folder = tmp_path_factory.mktemp("straight")
    return trained(folder, spec, plan_of(spec, replicas=2))


def test_a_crashed_run_goes_on_without_its_store_and_without_one_of_its_nodes(
    tmp_path: Path, corpus: Path, straight: Generation
) -> None:
    spec = spec_of(corpus)
    plan = plan_of(spec, replicas=2)
    first = killed(tmp_path, spec, placed(plan, "one", "two"))
    [kept] = first.events("state_kept")
    assert (kept["step"], kept["stored"], kept["copies"]) == (1, True, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "memory" / "one")  # what its ranks held lies at its neighbour too
    second = trained(
        tmp_path,
        spec,
        placed(plan, "three", "two"),
        generation=2,
        resume=first.newest(),
        memory=True,
    )
    [restored] = second.events("checkpoint_restored")
    assert (restored["step"], restored["source"]) == (1, "memory")
    assert list(second.rows()) == [2, 3, 4]
    assert second.weights_sha256() == straight.weights_sha256()
    left = [path for path in (tmp_path / "memory").rglob("*") if path.is_file()]
    assert left == [], "who ends in order leaves nothing in memory"


def test_one_goes_on_from_a_state_that_lay_in_memory_alone(
    tmp_path: Path, corpus: Path, straight: Generation
) -> None:
    spec = spec_of(corpus, memory_every_steps=1)
    plan = plan_of(spec, replicas=2)
    [kept] = killed(tmp_path, spec, plan).events("state_kept")
    assert (kept["location"], kept["stored"]) == ("memory://r1/g1-step1", False)
    assert (kept["copies"], (tmp_path / "checkpoints").exists()) == (1, False)
    second = trained(
        tmp_path, spec, plan_of(spec, stages=2), generation=2, resume=resume_of(kept), memory=True
    )
    assert second.events("checkpoint_restored")[0]["source"] == "memory"
    assert second.series("loss") == pytest.approx(straight.series("loss")[1:], rel=1e-5)


def test_what_is_damaged_in_memory_is_read_from_the_store_instead(
    tmp_path: Path, corpus: Path, straight: Generation
) -> None:
    spec = spec_of(corpus)
    plan = plan_of(spec, replicas=2)
    first = killed(tmp_path, spec, plan)
    folder = tmp_path / "memory" / "here" / "g1-step1"
    file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    second = trained(tmp_path, spec, plan, generation=2, resume=first.newest(), memory=True)
    [restored] = second.events("checkpoint_restored")
    assert restored["source"] == "store"
    assert file.name in restored["because"]
    assert "expected sha256:" in restored["because"]
    assert second.weights_sha256() == straight.weights_sha256()
