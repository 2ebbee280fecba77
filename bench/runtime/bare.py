"""The bare script: the same model, data (shuffled, too), layout and optimizer with
torch.distributed.pipelining and nothing else. No measurements, no status, no clipping, no
checkpoint; gradients are summed over replicas in float32, in one message.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

from bench.runtime.ranks import WARM_UP_STEPS, Measured, Watch, figures_of, join, start
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec


def run_bare(folder: Path, spec: RunSpec, plan: Plan) -> Measured:
    """Train bare."""
    folder.mkdir(parents=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = [folder / f"told-{rank}.json" for rank in range(plan.world_size)]
    processes = start(
        _rank,
        [
            (
                spec.model_dump_json(),
                plan.model_dump_json(),
                rank,
                store.port,
                str(folder / f"time-{rank}"),
                str(path),
            )
            for rank, path in enumerate(told)
        ],
    )
    join(processes)
    figures = figures_of(told)
    step_s = float((folder / "time-0").read_text())
    return Measured(step_s, figures.cpu_s, figures.peak_bytes, metrics={})


def _rank(spec_json: str, plan_json: str, rank: int, port: int, timed: str, told: str) -> None:
    torch.set_num_threads(1)
    spec, plan = RunSpec.model_validate_json(spec_json), Plan.model_validate_json(plan_json)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=plan.world_size)
    run = bare_step(spec, plan, rank)
    watch, durations = Watch(told, spec.train.steps), []
    for step in range(spec.train.steps):
        began = time.perf_counter()
        run(step)
        durations.append(time.perf_counter() - began)
        watch.step()
    Path(timed).write_text(str(statistics.median(durations[WARM_UP_STEPS:])))
    dist.barrier()
    dist.destroy_process_group()


def bare_step(spec: RunSpec, plan: Plan, rank: int) -> Callable[[int], None]:
    """Return what runs a step, by its number from 0; collective over all ranks, whose process group
    is there.
    """
    from worker.workloads.byte_gpt import Layer, workload

    stages = plan.stages
    replica, stage_index = divmod(rank, stages)
    pipelines = [
        dist.new_group([r * stages + s for s in range(stages)]) for r in range(plan.replicas)
    ]
    groups = [dist.new_group([r * stages + s for r in range(plan.replicas)]) for s in range(stages)]
    task = workload(params=spec.params, data=spec.data.source)
    dataset, params = task.dataset(), task.params
    first, end = plan.layers[stage_index]
    model = torch.nn.Sequential(*(Layer(params, index) for index in range(first, end)))
    size, micro = spec.train.global_batch // plan.replicas, plan.micro_batch
    tokens = torch.zeros(micro, params.context, dtype=torch.int64)
    width = (params.width,) if stage_index else ()
    example = torch.zeros(micro, params.context, *width) if stage_index else tokens
    last = stage_index == stages - 1
    output = torch.zeros(micro, params.context, 256 if last else params.width)
    stage = PipelineStage(
        model,
        stage_index,
        stages,
        torch.device("cpu"),
        input_args=example.requires_grad_() if stage_index else example,
        output_args=output.requires_grad_(),
        group=pipelines[replica],
    )
    weight = spec.train.global_batch * params.context

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        return total / weight

    schedule = Schedule1F1B(stage, size // micro, loss_fn=loss, scale_grads=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.train.optimizer.lr, fused=True)
    shuffled = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()

    def run(step: int) -> None:
        offset = step * spec.train.global_batch + replica * size
        samples: list[Any] = [dataset[index] for index in shuffled[offset : offset + size]]
        optimizer.zero_grad()
        args = (torch.stack([x for x, _ in samples]),) if stage_index == 0 else ()
        target = torch.stack([y for _, y in samples]) if last else None
        schedule.step(*args, target=target, losses=[], return_outputs=False)
        if plan.replicas > 1:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=groups[stage_index])
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
                gradient.copy_(summed.view_as(gradient))
        optimizer.step()

    return run
