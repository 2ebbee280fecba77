"""The tensors of a place, spread over its ranks as the workload says (DTensor)."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from trainmaster.errors import Problem, SpecError
from trainmaster.plugins import WithTensorParallel, Workload
from worker.devices import ComputeDevice
from worker.model.workload import StageLayers


def spread(
    layers: StageLayers, workload: Workload, group: dist.ProcessGroup, device: ComputeDevice
) -> None:
    """Leave this rank its part of the tensors that the workload names, in place.

    Every rank has built the same weights, so nothing is sent.

    Raises:
        SpecError: the workload does not say how, or not for so many ranks.
    """
    if not isinstance(workload, WithTensorParallel):
        message = f"{group.size()} needs a workload that has tensor_parallel(layer); use 1"
        raise SpecError([Problem("parallel.tensor", message)])
    mesh = DeviceMesh.from_group(group, device.torch_device.type, mesh_dim_names=("tensor",))
    for layer, module in layers.layers.items():
        styles = dict(workload.tensor_parallel(int(layer)))
        parallelize_module(module, mesh, styles, src_data_rank=None)
