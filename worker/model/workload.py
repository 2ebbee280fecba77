"""From a workload's builders to this rank's layers. Initial weights depend on (seed, layer index)
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from worker.model.draws import Draws
from worker.model.recompute import Run, plainly
from worker.model.user_code import (
    calling,
    named,
    problem,
    refuse_parameters,
    refuse_shared,
    told,
)


class StageLayers(nn.Module):
    """Some layers by their global index, run in order. Parameters are named by it: `layers.7.…`.

    What each layer gives must not change its shape or dtype from one micro-batch to the next: other
    stages, and other layouts, have been prepared for what it gave first.

    Args:
        run: how each layer is run forward.
        draws: what layers draw while they are trained; None for whatever torch draws next.
    """

    def __init__(
        self, modules: Mapping[int, nn.Module], *, run: Run = plainly, draws: Draws | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(layer): module for layer, module in modules.items()})
        self._modules_in_order = tuple(modules.items())
        self._run = run
        self._draws = draws
        self._gave: dict[int, tuple[torch.Size, torch.dtype]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        draws = self._draws if self.training else None
        for index, layer in self._modules_in_order:
            if draws is not None:
                draws.seed(index)
            x = self._run(layer, x)
            if not isinstance(x, torch.Tensor):
                raise problem(f"layer {index} gives {named(x)}; a layer must give one tensor")
            gave = self._gave.setdefault(index, (x.shape, x.dtype))
            if gave != (x.shape, x.dtype):
                raise problem(
                    f"layer {index} gives {told(x.shape, x.dtype)}, but {told(*gave)} on its first "
                    "run: what a layer gives must keep its shape and dtype"
                )
        return x

    def part(
        self, first_layer: int, end_layer: int, *, run: Run = plainly, draws: Draws | None = None
    ) -> StageLayers:
        """Return the layers [first_layer, end_layer): the same modules, not copies."""
        chosen = range(first_layer, end_layer)
        return StageLayers(
            {layer: self.layers[str(layer)] for layer in chosen}, run=run, draws=draws
        )


def layer_of(parameter_name: str) -> int:
    """Return the global index of the layer that a parameter of `StageLayers` belongs to."""
    return int(parameter_name.split(".")[1])


def layer_seed(seed: int, layer: int) -> int:
    """Return the seed of one layer's initial weights: the same in every layout, different for each
    layer.
    """
    digest = hashlib.sha256(f"initial weights\0{seed}\0{layer}".encode()).digest()
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
        raise problem(f"gives {len(builders)} layers, but the plan needs {needed}: submit it anew")
    modules: dict[int, nn.Module] = {}
    for layer in layers:
        modules[layer] = build_layer(builders[layer], layer, seed=seed)
    refuse_shared(modules)
    return StageLayers(modules)


def build_layer(builder: Callable[[], nn.Module], layer: int, *, seed: int) -> nn.Module:
    """Call one builder, in host memory: so the initial weights are the same on every device.

    Raises:
        SpecError: it raises, or gives something that this version cannot train right.
    """
    torch.manual_seed(layer_seed(seed, layer))
    with calling(f"the builder of layer {layer}"):
        module = builder()
    if not isinstance(module, nn.Module):
        raise problem(
            f"the builder of layer {layer} gives {type(module).__name__}, not a torch.nn.Module"
        )
    for name, _ in module.named_buffers():
        if name in module.state_dict():
            raise problem(
                f"layer {layer} keeps state in buffer {name!r}, which replicas would not share and "
                "checkpoints would not hold: use a layer without running state, or register the "
                "buffer with persistent=False"
            )
    refuse_parameters(module, layer)
    return module
