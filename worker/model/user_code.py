"""Calls into a workload: what it raises, or gives back, is a problem with a name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import TracebackException
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from trainmaster.errors import Problem, SpecError, TrainmasterError

REDUCIBLE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""What gradients can be summed in, and activations handed over in."""

_ALLOCATION_SIGNS = ("not enough memory", "can't allocate memory", "out of memory")
_TOLD_CHARS = 300


@contextmanager
def calling(what: str, *, may_pass: type[OSError] | None = OSError) -> Iterator[None]:
    """Tell what a part of a workload raises as a problem of the workload.

    Args:
        what: the part, such as "the builder of layer 3".
        may_pass: errors that another try may not meet, left as they are; None tells them too.

    Raises:
        SpecError: the body raised something else than an error of ours, of a peer's, or for lack
            of memory; also what is no `Exception`, such as an exit.
    """
    try:
        yield
    except BaseException as error:
        is_passing = may_pass is not None and isinstance(error, may_pass)
        if is_passing or is_ours(error) or is_out_of_memory(error):
            raise
        said = " ".join(said_of(error).split())[:_TOLD_CHARS]
        name = type(error).__name__
        raise problem(f"{what} raised {name}{f': {said}' if said else ''}") from error


def is_ours(error: BaseException) -> bool:
    """Return whether an error is of this runtime, or of the ranks' connections."""
    return isinstance(error, TrainmasterError | dist.DistError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error tells that memory was asked for and not given."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = said_of(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _ALLOCATION_SIGNS)


def said_of(error: BaseException) -> str:
    """Return what an error says of itself, or that it cannot: its class may be a workload's own."""
    return str(TracebackException(type(error), error, None, limit=0, compact=True))


class LossParts(NamedTuple):
    """What `loss` gives: the sum over a micro-batch, and its weight."""

    total: torch.Tensor
    weight: torch.Tensor | float


def loss_parts(given: Any) -> LossParts:
    """Return what `loss` gave as the pair that it must be.

    Raises:
        SpecError: it is none; names what was expected and seen.
    """
    if not (isinstance(given, tuple | list) and len(given) == 2):
        seen = f"{len(given)} values" if isinstance(given, tuple | list) else named(given)
        raise problem(f"loss() gives {seen}; it must give a pair (sum, weight)")
    total, weight = given
    if not (isinstance(total, torch.Tensor) and total.dim() == 0 and total.is_floating_point()):
        raise problem(
            f"loss() gives {named(total)} as its sum; it must be a floating-point tensor without "
            "axes: the sum over the micro-batch"
        )
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number and not (isinstance(weight, torch.Tensor) and weight.numel() == 1):
        raise problem(
            f"loss() gives {named(weight)} as its weight; it must be one number: what the sum is "
            "to be divided by"
        )
    return LossParts(total, weight)


def refuse_weight(weight: float, *, of: str) -> None:
    """Refuse a weight that nothing can be divided by.

    Raises:
        SpecError: it is negative or not finite. 0 is none: a micro-batch may hold nothing but
            padding.
    """
    if not (math.isfinite(weight) and weight >= 0):
        raise problem(f"loss() gives {of} the weight {weight}; it must be a number from 0 on")


def refuse_parameters(module: nn.Module, layer: int) -> None:
    """Refuse parameters that gradients cannot be summed of.

    Raises:
        SpecError: one is of a dtype that no backend reduces, or has no values yet; names it, what
            was expected and seen.
    """
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter) or parameter.is_meta:
            raise problem(
                f"layer {layer}: parameter {name!r} has no values (a lazy or meta parameter); "
                "builders must give layers with their initial weights"
            )
        if parameter.requires_grad and parameter.dtype not in REDUCIBLE:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in REDUCIBLE)
            seen = str(parameter.dtype).removeprefix("torch.")
            raise problem(
                f"layer {layer}: parameter {name!r} is {seen}, whose gradients no backend can "
                f"reduce; use {known}, or requires_grad=False"
            )


def refuse_shared(layers: dict[int, nn.Module]) -> None:
    """Refuse a parameter that two layers share.

    Raises:
        SpecError: ranks that hold one of the layers each would train two of it; names both.
    """
    holders: dict[int, tuple[int, str]] = {}
    for layer, module in layers.items():
        for name, parameter in module.named_parameters():
            other, first_name = holders.setdefault(id(parameter), (layer, name))
            if other != layer:
                raise shared(other, first_name, layer, name)


def shared(first: int, first_name: str, second: int, second_name: str) -> SpecError:
    """Return the problem of a parameter that two layers share."""
    return problem(
        f"layers {first} and {second} share a parameter ({first_name!r} and {second_name!r}): "
        "where they lie on different ranks they would part; give each layer its own"
    )


def named(value: object) -> str:
    """Return what a value is, as a person would ask for it."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {told(value.shape, value.dtype)}"
    return type(value).__name__


def told(shape: Any, dtype: torch.dtype) -> str:
    """Return a shape and dtype as one text."""
    return f"{dtype} {list(shape)}"


def problem(message: str, *, path: str = "workload") -> SpecError:
    """Return one problem of a workload."""
    return SpecError([Problem(path, message)])
