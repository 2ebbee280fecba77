"""Every proven cell of `trainmaster.cells` trains like one process: `make matrix` runs them all, a
sample runs with the other tests.

The single process is a plain loop that knows nothing of layouts. It goes micro-batch by
micro-batch, as pipelines do, and adds up in float64, as ADR 13 has it; so weights are compared bit
for bit where a cell's sums are the same sums. Where they are not (a matrix product that is cut in
two), plain gradient descent shows the gradients, and what it changed is compared within 1e-6:
AdamW would make as much of a bias whose true gradient is 0 as of any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import Generation, plan_of, tiny_spec, trained
from trainmaster import cells
from trainmaster.batches import passes_of
from trainmaster.cells import Cell
from trainmaster.plugins import Workload, load_workload
from trainmaster.schedules import KNOWN
from trainmaster.spec import OptimizerSpec, RunSpec
from worker.data.order import sample_indices
from worker.model.workload import StageLayers, build_stage
from worker.optimizer import lr_factor
from worker.weights_digest import digest_of

TOLERANCE = 1e-6
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "grad_clip": 1.0, "warmup_steps": 2}
SAMPLE = {
    Cell("interleaved_1f1b"),
    Cell("looped_bfs", zero=1),
    Cell("interleaved_zero_bubble", zero=2, offload="optimizer"),
    Cell("zbv_zero_bubble"),
    Cell("dualpipev", zero=2, recompute="full"),
    Cell("1f1b", zero=1, ragged=True),
    Cell("1f1b", zero=1, tensor=True, recompute="selective"),
    Cell("interleaved_1f1b", zero=3, offload="parameters", recompute="full"),
}


@dataclass(frozen=True)
class Reference:
    """What the plain loop gave."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]
    initial: dict[str, torch.Tensor]

    @property
    def sha256(self) -> str:
        return digest_of(self.weights)


def plain_loop(spec: RunSpec, *, micro_batch: int, sync_every: int = 1) -> Reference:
    """Train in this process. The loss scale of fp16 falls until nothing overflows."""
    torch.set_num_threads(1)
    train, adam = spec.train, spec.train.optimizer
    workload = load_workload(spec.workload, params=spec.params, data=spec.data.source)
    dataset, builders = workload.dataset(), workload.layers()
    model = build_stage(builders, first_layer=0, end_layer=len(builders), seed=train.seed)
    weights = dict(model.named_parameters())
    groups = [
        {"params": [p for p in weights.values() if p.dim() >= 2]},
        {"params": [p for p in weights.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = optimizer_of(adam, groups)
    scale = 2.0**16 if train.precision == "fp16" else 1.0
    initial = copies(weights)
    losses, norms = [], []
    for step in range(1, train.steps + 1):
        passes = passes_of(step, sync_every, train.batch_ramp_steps)
        size = train.global_batch * len(passes)
        indices = [
            int(index)
            for each in passes
            for index in sample_indices(
                seed=train.seed,
                batch=each,
                batch_size=train.global_batch,
                num_samples=len(dataset),
            )
        ]
        batches = [
            [dataset[index] for index in indices[first : first + micro_batch]]
            for first in range(0, size, micro_batch)
        ]
        loss_sum, weight_sum, sums = one_pass(model, workload, batches, train.precision, scale)
        while scale > 1 and not all(each.isfinite().all() for each in sums.values()):
            scale /= 2
            loss_sum, weight_sum, sums = one_pass(model, workload, batches, train.precision, scale)
        norm = float(torch.stack([each.norm() for each in sums.values()]).norm()) / weight_sum
        limit = adam.grad_clip
        clip = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        for name, parameter in weights.items():
            parameter.grad = (sums[name] * (clip / weight_sum)).float()
        factor = lr_factor(step, adam, steps=train.steps, samples_per_step=size)
        for group in optimizer.param_groups:
            group["lr"] = adam.lr * factor
        optimizer.step()
        losses.append(loss_sum / weight_sum)
        norms.append(norm)
    return Reference(losses, norms, copies(weights), initial)


def optimizer_of(spec: OptimizerSpec, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    told = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    match spec.name:
        case "adamw":
            return torch.optim.AdamW(groups, betas=tuple(spec.betas), fused=True, **told)
        case "adafactor":
            return torch.optim.Adafactor(groups, **told)
        case _:
            return torch.optim.SGD(groups, momentum=spec.momentum, **told)


Samples = list[tuple[torch.Tensor, torch.Tensor]]


def one_pass(
    model: StageLayers, workload: Workload, batches: list[Samples], precision: str, scale: float
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Loss sum, weight and gradient sums."""
    weights = dict(model.named_parameters())
    layers = model.layers.values()
    sums = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in weights.items()}
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    loss_sum = weight_sum = 0.0
    for samples in batches:
        with torch.autocast("cpu", dtype=dtype, enabled=precision != "fp32"):
            output = torch.nn.Sequential(*layers)(torch.stack([x for x, _ in samples]))
            total, weight = workload.loss(output, torch.stack([y for _, y in samples]))
        model.zero_grad()
        (total * scale).backward()
        loss_sum += float(total.detach())
        weight_sum += float(weight)
        for name, parameter in weights.items():
            assert parameter.grad is not None
            sums[name] += parameter.grad / scale
    return loss_sum, weight_sum, sums


def copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def weights_of(seen: Generation) -> dict[str, torch.Tensor]:
    """The weights of the newest checkpoint, put together from all ranks' files."""
    from worker.checkpoint.reader import open_checkpoint
    from worker.storage import open_storage

    newest = seen.newest()
    root = newest.location.rpartition("/")[0]
    found = open_checkpoint(open_storage(root), newest.location, manifest_sha256=None)
    wanted = {}
    for name, shards in found.manifest.tensors.items():
        if name.startswith("model/"):
            ends = [[o + n for o, n in zip(s.global_offset, s.shape, strict=True)] for s in shards]
            wanted[name] = torch.empty([max(axis) for axis in zip(*ends, strict=True)])
    found.load(wanted)
    return {name.removeprefix("model/"): tensor for name, tensor in wanted.items()}


def ask_of(cell: Cell) -> dict[str, Any]:
    """A `parallel` section in this cell; uneven shares, since even ones hide wrong weights."""
    ask: dict[str, Any] = {
        "schedule": cell.schedule,
        "zero": cell.zero,
        "offload": cell.offload,
        "recompute": cell.recompute,
        "tensor": 2 if cell.tensor else 1,
        "micro_batch": 1,
        "bucket_mb": 0.05,
    }
    if not cell.ragged:
        shares = [8, 8] if cell.zero == 3 else [10, 6]
        return {**ask, "replicas": 2, "stages": 2, "shares": shares}
    one, other = (
        ([1, 1, 2], [1, 3]) if KNOWN[cell.schedule].virtual == 1 else ([1, 1, 1, 1], [2, 2])
    )
    return {
        **ask,
        "pipelines": [
            {"layers": one, "micro_batches": 10},
            {"layers": other, "micro_batches": 6},
        ],
    }


def proven() -> list[Any]:
    return [
        pytest.param(
            cell, id=cells.name_of(cell), marks=[] if cell in SAMPLE else [pytest.mark.matrix]
        )
        for cell in cells.all_cells()
        if cells.is_proven(cell)
    ]


@pytest.fixture(scope="module")
def adamw(corpus: Path) -> Reference:
    return plain_loop(tiny_spec(corpus), micro_batch=1)


@pytest.fixture(scope="module")
def sgd(corpus: Path) -> Reference:
    return plain_loop(tiny_spec(corpus, optimizer=SGD), micro_batch=1)


def compare(seen: Generation, reference: Reference, *, bitwise: bool) -> None:
    assert seen.series("loss") == pytest.approx(reference.losses, rel=TOLERANCE)
    assert seen.series("grad_norm") == pytest.approx(reference.norms, rel=TOLERANCE)
    if bitwise:
        assert seen.weights_sha256() == reference.sha256
        return
    weights = weights_of(seen)
    assert weights.keys() == reference.weights.keys()
    wrong = distance(weights, reference.weights)
    assert wrong <= TOLERANCE * distance(reference.weights, reference.initial)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(one[n].double() - other[n].double()).norm() for n in one]).norm())


@pytest.mark.parametrize("cell", proven())
def test_a_proven_cell_trains_like_one_process(
    tmp_path: Path, corpus: Path, adamw: Reference, sgd: Reference, cell: Cell
) -> None:
    bitwise = cells.is_bitwise(cell)
    spec = tiny_spec(corpus) if bitwise else tiny_spec(corpus, optimizer=SGD)
    seen = trained(tmp_path, spec, plan_of(spec, **ask_of(cell)))
    compare(seen, adamw if bitwise else sgd, bitwise=bitwise)


@pytest.mark.parametrize(
    "cell",
    [
        Cell("zbv_zero_bubble", zero=2),
        pytest.param(Cell("1f1b", zero=1, ragged=True), marks=pytest.mark.matrix),
        pytest.param(Cell("looped_bfs", tensor=True), marks=pytest.mark.matrix),
        pytest.param(Cell("1f1b", zero=3), marks=pytest.mark.matrix),
    ],
    ids=cells.name_of,
)
def test_gradients_summed_in_float32_train_like_one_process_within_rounding(
    tmp_path: Path, corpus: Path, sgd: Reference, cell: Cell
) -> None:
    spec = tiny_spec(corpus, optimizer=SGD, gradient_sums="float32")
    seen = trained(tmp_path, spec, plan_of(spec, **ask_of(cell)))
    compare(seen, sgd, bitwise=False)
    if cell.zero < 3:
        width = sum(each.numel() for each in sgd.weights.values()) * 4
        stages = [seen.series("allreduce_bytes", rank)[0] for rank in (0, 1)]
        assert cell.tensor or cell.ragged or sum(stages) == width, "half of the bytes"
