"""What only a CUDA device can show (docs/gpu.md). Skipped without one: `make test-gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import FORKS, plan_of, tiny_spec, trained
from worker.launch import SlotDevice

pytestmark = pytest.mark.gpu
LOOSE = 1e-3
"""Kernels of two kinds of devices differ by rounding, and a run drifts by it."""


def _count(answer: Any) -> None:
    import torch

    answer.put(torch.cuda.device_count() if torch.cuda.is_available() else 0)


@pytest.fixture(scope="session")
def devices() -> int:
    """Return how many CUDA devices there are, asked by another process: ranks are forked from this
    one, which must not touch CUDA.
    """
    answer = FORKS.Queue()
    process = FORKS.Process(target=_count, args=(answer,))
    process.start()
    found = int(answer.get(timeout=120))
    process.join()
    return found


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "rhymes.txt"
    path.write_text("".join(f"{n} green bottles, and {n * n} more. " for n in range(2000)))
    return path


def cuda(count: int) -> list[SlotDevice]:
    return [SlotDevice(kind="cuda", index=index, runs_ahead=True) for index in range(count)]


@pytest.mark.parametrize(
    "ask",
    [
        {},
        {"stages": 2},
        {"replicas": 2},
        {"replicas": 2, "zero": 1},
        {"replicas": 2, "zero": 2},
        {"replicas": 2, "zero": 3},
        {"tensor": 2},
        {"replicas": 2, "stages": 2, "schedule": "interleaved_1f1b", "virtual": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_trains_on_cuda_devices_as_on_the_cpu(
    tmp_path: Path, text: Path, devices: int, ask: dict[str, Any], precision: str
) -> None:
    spec = tiny_spec(text, steps=6, precision=precision)
    plan = plan_of(spec, **ask)
    if devices < plan.world_size:
        pytest.skip(f"needs {plan.world_size} CUDA devices, and there are {devices}")
    here = trained(tmp_path / "cpu", tiny_spec(text, steps=6), plan_of(spec))
    there = trained(tmp_path / "cuda", spec, plan, devices=cuda(plan.world_size))
    loose = LOOSE if precision == "fp32" else 0.05
    assert there.series("loss") == pytest.approx(here.series("loss"), rel=loose)
    assert there.events("rank_ready")[0]["device_kind"] == "cuda"


def test_a_checkpoint_of_one_kind_is_resumed_on_the_other(
    tmp_path: Path, text: Path, devices: int
) -> None:
    if devices < 1:
        pytest.skip("needs a CUDA device")
    spec = tiny_spec(text, steps=6)
    plan = plan_of(spec)
    first = trained(tmp_path / "cut", tiny_spec(text, steps=3), plan, devices=cuda(1))
    second = trained(tmp_path / "cut", spec, plan, generation=2, resume=first.newest())
    third = trained(
        tmp_path / "again", spec, plan, generation=2, resume=first.newest(), devices=cuda(1)
    )
    assert third.series("loss") == pytest.approx(second.series("loss"), rel=LOOSE)


def test_a_replica_on_a_cuda_device_trains_with_one_on_the_cpu(
    tmp_path: Path, text: Path, devices: int
) -> None:
    if devices < 1:
        pytest.skip("needs a CUDA device")
    spec = tiny_spec(text, steps=6)
    plan = plan_of(spec, replicas=2, shares=[6, 2])
    alone = trained(tmp_path / "cpu", spec, plan)
    mixed = trained(tmp_path / "mixed", spec, plan, devices=[*cuda(1), SlotDevice()])
    assert mixed.series("loss") == pytest.approx(alone.series("loss"), rel=LOOSE)


def test_a_stage_on_a_cuda_device_hands_over_to_one_on_the_cpu(
    tmp_path: Path, text: Path, devices: int
) -> None:
    if devices < 1:
        pytest.skip("needs a CUDA device")
    spec = tiny_spec(text, steps=6)
    plan = plan_of(spec, stages=2)
    alone = trained(tmp_path / "cpu", spec, plan)
    mixed = trained(tmp_path / "mixed", spec, plan, devices=[*cuda(1), SlotDevice()])
    assert mixed.series("loss") == pytest.approx(alone.series("loss"), rel=LOOSE)
    assert mixed.events("rank_finished")[0]["relayed_bytes"] > 0


def test_the_driver_tells_what_is_asked(devices: int) -> None:
    if devices < 1:
        pytest.skip("needs a CUDA device")
    from worker.agent.nvml import open_nvml

    nvml = open_nvml()
    assert nvml is not None, "install the extra nvidia"
    for identity in nvml.identities():
        reading = nvml.reading(identity.index)
        assert reading.memory_used_bytes is not None
        assert reading.temperature_c is None or 0 < reading.temperature_c < 120
    assert nvml.xids() == []


def _copied_from_cuda(answer: Any) -> None:
    import torch

    from worker.checkpoint.part import About, Copies
    from worker.checkpoint.transfer import transfer_of
    from worker.devices import ComputeDevice

    device = ComputeDevice("cuda")
    device.enter()
    copies, about = Copies(None, 0, transfer=transfer_of(device)), About("r1", 1, 1, 0)
    weights = torch.randn(1 << 24, device=device.torch_device)
    tensors = {"model/w": weights, "model/t": weights.view(4, -1).t(), "step": torch.ones(3)}
    copies.prepare(tensors, about)
    expected = {name: each.cpu() for name, each in tensors.items()}
    copy = copies.take(tensors, about)
    weights.zero_()  # as the optimizer does, behind the copy
    part = copy.part()
    right = all(torch.equal(part.shards[name].tensor, each) for name, each in expected.items())
    assert copies.newest is not None
    answer.put((right, copies.newest.tensor_B.is_pinned()))


def test_a_checkpoint_is_copied_on_its_own_stream_into_locked_pages(devices: int) -> None:
    if devices < 1:
        pytest.skip("needs a CUDA device")
    answer = FORKS.Queue()
    process = FORKS.Process(target=_copied_from_cuda, args=(answer,))
    process.start()
    assert answer.get(timeout=120) == (True, True)
    process.join()
