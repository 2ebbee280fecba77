"""From a workload's builders to this rank's layers. Initial weights depend on (seed, layer index)
alone.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from trainmaster.errors import Problem, SpecError


class StageLayers(nn.Module):
    """Some layers by their global index, run in order. Parameters are named by it: `layers.7.…`."""

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(layer): module for layer, module in modules.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x

    def part(self, first_layer: int, end_layer: int) -> StageLayers:
        """Return the layers [first_layer, end_layer): the same modules, not copies."""
        chosen = range(first_layer, end_layer)
        return StageLayers({layer: self.layers[str(layer)] for layer in chosen})


def layer_of(parameter_name: str) -> int:
    """Return the global index of the layer that a parameter of `StageLayers` belongs to."""
    return int(parameter_name.split(".")[1])


def layer_seed(seed: int, layer: int) -> int:
    """Return the seed of one layer's initial weights: the same in every layout, different for each
    layer.
    """
    digest = hashlib.sha256(f"initial weights\0{seed}\0{layer}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def step_seed(seed: int, step: int, replica: int, stage: int) -> int:
    """Return the seed of what a workload draws in one step (dropout): the same after a restart."""
    digest = hashlib.sha256(f"draws\0{seed}\0{step}\0{replica}\0{stage}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def build_stage(
    builders: Sequence[Callable[[], nn.Module]], *, first_layer: int, end_layer: int, seed: int
) -> StageLayers:
    """Build the layers [first_layer, end_layer) with their initial weights.

    Raises:
        SpecError: as `build_layers`.
    """
    return build_layers(builders, range(first_layer, end_layer), seed=seed)


def build_layers(
    builders: Sequence[Callable[[], nn.Module]], layers: Sequence[int], *, seed: int
) -> StageLayers:
    """Build some layers, in ascending order, with their initial weights.

    Raises:
        SpecError: the workload has another number of layers than the plan, or a builder gives no
            module.
    """
    needed = max(layers) + 1
    if needed > len(builders):
        message = f"gives {len(builders)} layers, but the plan needs {needed}: submit it anew"
        raise SpecError([Problem("workload", message)])
    modules = {}
    for layer in layers:
        torch.manual_seed(layer_seed(seed, layer))
        modules[layer] = build_layer(builders[layer], layer)
    return StageLayers(modules)


def build_layer(builder: Callable[[], nn.Module], layer: int) -> nn.Module:
    """Call one builder.

    Raises:
        SpecError: it gives something that this version cannot train right.
    """
    module = builder()
    if not isinstance(module, nn.Module):
        message = (
            f"the builder of layer {layer} gives {type(module).__name__}, not a torch.nn.Module"
        )
        raise SpecError([Problem("workload", message)])
    for name, _ in module.named_buffers():
        if name in module.state_dict():
            message = (
                f"layer {layer} keeps state in buffer {name!r}, which replicas would not share and "
                "checkpoints would not hold: use a layer without running state, or register the "
                "buffer with persistent=False"
            )
            raise SpecError([Problem("workload", message)])
    return module


def code_sha256(path: str) -> str:
    """Digest the source of the module that a workload is imported from."""
    source = inspect.getsourcefile(importlib.import_module(path.partition(":")[0]))
    return hashlib.sha256(Path(source).read_bytes() if source else b"").hexdigest()
