"""The newest state outlives its ranks in their nodes' memory, and a run goes on from there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.distributed.ranks import Generation, plan_of, started, tiny_spec, trained
from trainmaster.orders import Drill
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.wire import Resume

STEPS = 6
KILLED_AT = 5


def killed(folder: Path, spec: RunSpec, plan: Plan, **options: object) -> Generation:
    """A generation whose first rank dies without a word."""
    drill = Drill(id=1, fault="kill", rank=0, at_step=KILLED_AT)
    with started(folder, spec, plan, drills=[drill], memory=True, **options) as generation:  # type: ignore[arg-type]
        generation.join()
    return generation


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


def test_a_crashed_run_goes_on_without_its_store(
    tmp_path: Path, corpus: Path, straight: Generation
) -> None:
    spec = spec_of(corpus)
    plan = placed(plan_of(spec, replicas=2), "one", "two")
    first = killed(tmp_path, spec, plan, checkpoint_every=4)
    [kept] = first.events("state_kept")
    assert (kept["step"], kept["stored"], kept["copies"]) == (4, True, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    # Node "one" is lost too; what its ranks held lies at its neighbour.
    shutil.rmtree(tmp_path / "memory" / "one")
    second = trained(
        tmp_path,
        spec,
        placed(plan, "three", "two"),
        generation=2,
        resume=first.newest(),
        memory=True,
    )
    [restored] = second.events("checkpoint_restored")
    assert (restored["step"], restored["source"]) == (4, "memory")
    assert list(second.rows()) == [5, 6]
    assert second.weights_sha256() == straight.weights_sha256()
    left = [path for path in (tmp_path / "memory").rglob("*") if path.is_file()]
    assert left == [], "who ends in order leaves nothing in memory"


def test_a_state_in_memory_alone_is_newer_and_one_that_is_damaged_is_not_used(
    tmp_path: Path, corpus: Path, straight: Generation
) -> None:
    spec = spec_of(corpus, memory_every_steps=1, when_busy="wait")
    plan = plan_of(spec, replicas=2)
    first = killed(tmp_path, spec, plan, checkpoint_every=2)
    newest = first.events("state_kept")[-1]
    names = ("checkpoint", "step", "location", "manifest_sha256")
    assert newest["location"] == f"memory://r1/g1-step{newest['step']}" or newest["stored"]
    resume = Resume.model_validate({name: newest[name] for name in names})
    second = trained(
        tmp_path, spec, plan, generation=2, resume=resume, checkpoint_every=1000, memory=True
    )
    assert second.events("checkpoint_restored")[0]["source"] == "memory"
    assert second.weights_sha256() == straight.weights_sha256()

    stored = first.newest()
    name = stored.location.rpartition("/")[2]
    copy = tmp_path / "memory" / "here" / name
    shutil.copytree(tmp_path / "checkpoints" / name, copy)
    file = max(copy.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    third = trained(tmp_path, spec, plan, generation=3, resume=stored, memory=True)
    [restored] = third.events("checkpoint_restored")
    assert restored["source"] == "store"
    assert file.name in restored["because"]
    assert "expected sha256:" in restored["because"]
    assert third.weights_sha256() == straight.weights_sha256()
