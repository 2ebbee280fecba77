"""Every layout trains the same model, compared with a plain loop in one process and with itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.ranks import plan_of, tiny_spec, trained
from trainmaster.plugins import load_workload
from trainmaster.spec import RunSpec
from worker.data.order import sample_indices
from worker.model.workload import build_stage
from worker.optimizer import lr_factor
from worker.weights_digest import digest_of

TOLERANCE = 1e-5
"""Relative: the plain loop adds gradients in float32 and in another order."""


def plain_loop(spec: RunSpec) -> tuple[list[float], list[float], str]:
    """Losses, gradient norms and weights of the same training, written as anybody would."""
    torch.set_num_threads(1)
    train = spec.train
    workload = load_workload(spec.workload, params=spec.params, data=spec.data.source)
    dataset = workload.dataset()
    num_layers = len(workload.layers())
    model = build_stage(workload.layers(), first_layer=0, end_layer=num_layers, seed=train.seed)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    told = {"lr": train.optimizer.lr, "weight_decay": train.optimizer.weight_decay}
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(groups, betas=tuple(train.optimizer.betas), **told)
        if train.optimizer.name == "adamw"
        else torch.optim.SGD(groups, momentum=train.optimizer.momentum, **told)
    )
    losses, norms = [], []
    for step in range(1, train.steps + 1):
        indices = sample_indices(
            seed=train.seed, batch=step, batch_size=train.global_batch, num_samples=len(dataset)
        )
        samples = [dataset[int(index)] for index in indices]
        total, weight = workload.loss(
            model(torch.stack([x for x, _ in samples])), torch.stack([y for _, y in samples])
        )
        optimizer.zero_grad()
        (total / weight).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.optimizer.grad_clip)
        factor = lr_factor(step, train.optimizer, steps=train.steps, samples_per_step=16)
        for group in optimizer.param_groups:
            group["lr"] = train.optimizer.lr * factor
        optimizer.step()
        losses.append(float(total.detach() / weight))
        norms.append(float(norm))
    return losses, norms, digest_of(dict(model.named_parameters()))


@pytest.mark.parametrize(
    "ask",
    [
        {},
        {"schedule": "gpipe"},
        {"stages": 2},
        {"replicas": 2},
        {"stages": 4},
        {"replicas": 4},
        {"replicas": 2, "stages": 2},
        {"replicas": 2, "stages": 2, "schedule": "gpipe"},
        {"replicas": 2, "stages": 2, "shares": [6, 2]},
        {"stages": 2, "layers": [[0, 1], [1, 4]]},
        {"replicas": 2, "stages": 2, "bucket_mb": 0.01},
    ],
    ids=str,
)
def test_a_layout_equals_a_plain_loop_within_tolerance(
    tmp_path: Path, corpus: Path, ask: dict[str, object]
) -> None:
    spec = tiny_spec(corpus)
    losses, norms, _ = plain_loop(spec)
    seen = trained(tmp_path, spec, plan_of(spec, **ask))
    assert seen.series("loss") == pytest.approx(losses, rel=TOLERANCE)
    assert seen.series("grad_norm") == pytest.approx(norms, rel=10 * TOLERANCE)


def test_sgd_with_momentum_equals_a_plain_loop_too(tmp_path: Path, corpus: Path) -> None:
    sgd = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "grad_clip": 1.0, "warmup_steps": 2}
    spec = tiny_spec(corpus, optimizer=sgd)
    losses, _, _ = plain_loop(spec)
    seen = trained(tmp_path, spec, plan_of(spec, replicas=2, stages=2))
    assert seen.series("loss") == pytest.approx(losses, rel=TOLERANCE)


@pytest.mark.parametrize("ask", [{"stages": 2}, {"replicas": 2, "stages": 2}], ids=str)
def test_a_layout_repeats_itself_bit_for_bit(
    tmp_path: Path, corpus: Path, ask: dict[str, object]
) -> None:
    spec = tiny_spec(corpus)
    plan = plan_of(spec, **ask)
    first = trained(tmp_path / "first", spec, plan)
    second = trained(tmp_path / "second", spec, plan)
    assert first.series("loss") == second.series("loss")
    assert first.weights_sha256() == second.weights_sha256()


def test_no_layout_changes_a_bit_while_micro_batches_are_of_one_size(
    tmp_path: Path, corpus: Path
) -> None:
    """Micro-batches are summed in float64, so only about one value in 10^8 can round another way:
    none of these.
    """
    spec = tiny_spec(corpus)
    asks: list[dict[str, object]] = [
        {},
        {"stages": 4},
        {"stages": 2, "schedule": "gpipe"},
        {"replicas": 4},
        {"replicas": 2, "stages": 2, "shares": [5, 3]},
    ]
    seen = [trained(tmp_path / str(n), spec, plan_of(spec, **a)) for n, a in enumerate(asks)]
    assert len({each.weights_sha256() for each in seen}) == 1
    assert len({tuple(each.series("grad_norm")) for each in seen}) == 1
