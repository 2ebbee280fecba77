"""The learning rate as a function of the step, and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from trainmaster.plugins import WithOptimizer, Workload
from trainmaster.spec import OptimizerSpec
from worker.model.user_code import calling, named, problem

LrWindows = Sequence[tuple[int, int, float]]
"""(first step, last step, factor), both steps included."""


def lr_factor(
    step: int, spec: OptimizerSpec, *, steps: int, samples_per_step: int, windows: LrWindows = ()
) -> float:
    """Return what the spec's learning rate is multiplied by at `step`: batch scaling, warm-up,
    decay and windows.

    Linear scaling and its warm-up: Goyal et al. (2017), sections 2.1 and 2.2. Cosine: Loshchilov
    and Hutter (2017), eq. 5.
    """
    factor = _batch_factor(spec, samples_per_step) * _decay_factor(step, spec, steps)
    for first, last, window_factor in windows:
        if first <= step <= last:
            factor *= window_factor
    return factor


def _batch_factor(spec: OptimizerSpec, samples_per_step: int) -> float:
    if spec.base_batch is None or spec.lr_scaling == "none":
        return 1.0
    ratio = samples_per_step / spec.base_batch
    return ratio if spec.lr_scaling == "linear" else math.sqrt(ratio)


def _decay_factor(step: int, spec: OptimizerSpec, steps: int) -> float:
    if step <= spec.warmup_steps:
        return step / spec.warmup_steps
    if spec.decay == "constant":
        return 1.0
    done = (step - spec.warmup_steps) / max(1, steps - spec.warmup_steps)
    left = (
        1.0 - min(1.0, done)
        if spec.decay == "linear"
        else 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    )
    return spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * left


class Optimizer:
    """The workload's own optimizer, or the spec's, over this rank's parameters."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        spec: OptimizerSpec,
        workload: Workload,
    ) -> None:
        self._parameters = list(parameters)
        if isinstance(workload, WithOptimizer):
            self._torch = own_optimizer(workload, self._parameters)
        else:
            self._torch = _optimizer(self._parameters, spec)
        self._initial_lrs = [float(group["lr"]) for group in self._torch.param_groups]

    def set_lr(self, factor: float) -> float:
        """Set each group's learning rate to its initial one times `factor`; return the first
        group's.
        """
        for group, initial in zip(self._torch.param_groups, self._initial_lrs, strict=True):
            group["lr"] = initial * factor
        return self._initial_lrs[0] * factor if self._initial_lrs else 0.0

    def step(self, closed: torch.Tensor | None = None) -> None:
        """Apply the gradients.

        Args:
            closed: where it holds 1, nothing is applied; read on the device. For optimizers that
                torch has fused.
        """
        if closed is not None:
            # As torch's own gradient scaler tells a fused optimizer of an overflow.
            self._torch.found_inf = closed  # type: ignore[attr-defined]
        self._torch.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all state as `NAME/KEY` -> tensor; empty before the first applied step."""
        refuse_state(self._torch, self._parameters)
        return {
            f"{name}/{key}": value
            for name, parameter in self._parameters
            for key, value in self._torch.state.get(parameter, {}).items()
            if value is not None
        }

    def adopt(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over state as `tensors` returned it; parameters that are not named keep none."""
        parameters = dict(self._parameters)
        for full_name, tensor in tensors.items():
            name, _, key = full_name.rpartition("/")
            # A fused optimizer keeps its counters beside the parameters, too.
            place = parameters[name].device
            self._torch.state.setdefault(parameters[name], {})[key] = tensor.to(place)


def own_optimizer(
    workload: WithOptimizer, parameters: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """Return the optimizer that a workload brings, over all of `parameters` and nothing else.

    Raises:
        SpecError: it raises, gives something else, or leaves parameters out.
    """
    with calling("optimizer()"):
        found: object = workload.optimizer(list(parameters))
    if not isinstance(found, torch.optim.Optimizer):
        raise problem(f"optimizer() gives {named(found)}, not a torch.optim.Optimizer")
    names = {id(parameter): name for name, parameter in parameters}
    taken = [id(each) for group in found.param_groups for each in group["params"]]
    left_out = [name for key, name in names.items() if key not in set(taken)]
    if left_out:
        more = f" and {len(left_out) - 1} more" if left_out[1:] else ""
        raise problem(
            f"optimizer() leaves out {left_out[0]}{more}: it must update all parameters that it "
            "is given; what is not to be trained has requires_grad=False"
        )
    if any(key not in names for key in taken):
        raise problem("optimizer() updates parameters that it was not given")
    if any("lr" not in group for group in found.param_groups):
        raise problem("optimizer() gives groups without a learning rate (`lr`)")
    return found


def refuse_state(
    optimizer: torch.optim.Optimizer, parameters: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Refuse an optimizer whose state a checkpoint cannot hold.

    Raises:
        SpecError: it keeps something of a parameter that is no tensor.
    """
    for name, parameter in parameters:
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None and not isinstance(value, torch.Tensor):
                raise problem(
                    f"the optimizer keeps {key!r} of {name} as {named(value)}; a checkpoint holds "
                    "tensors"
                )


def _optimizer(
    parameters: Sequence[tuple[str, nn.Parameter]], spec: OptimizerSpec
) -> torch.optim.Optimizer:
    """Decay shrinks matrices only: norms and biases have no scale that it could hold in check."""
    matrices = [parameter for _, parameter in parameters if parameter.dim() >= 2]
    others = [parameter for _, parameter in parameters if parameter.dim() < 2]
    groups = [
        {"params": params, "weight_decay": decay}
        for params, decay in ((matrices, spec.weight_decay), (others, 0.0))
        if params
    ]
    if spec.name == "adamw":
        beta_1, beta_2 = spec.betas
        return torch.optim.AdamW(
            groups, lr=spec.lr, betas=(beta_1, beta_2), eps=spec.eps, fused=True
        )
    if spec.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=spec.lr)
    return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
