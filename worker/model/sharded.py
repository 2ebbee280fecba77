"""ZeRO 3: parameters divided over the replicas, whole only while their layer computes (FSDP2).

Each layer is gathered before its forward and again before its backward, and its gradients are
scattered after each micro-batch. So all replicas go through their micro-batches together, which
needs equal shares. The sum over replicas is torch's, in the parameters' dtype; micro-batches are
added up in float64 as everywhere.

FSDP learns from autograd that a backward has ended. A schedule that splits the backward goes round
that, and gets wrong gradients without an error; those cells are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from trainmaster.emulation import Link
from worker.delays import Ring, slow_down
from worker.devices import ComputeDevice
from worker.groups import SegmentGroup
from worker.model.workload import StageLayers


def shard(
    layers: StageLayers,
    segments: Sequence[SegmentGroup],
    device: ComputeDevice,
    *,
    on_host: bool,
    links: Mapping[int, Link],
) -> None:
    """Leave this rank its rows of all parameters, in place.

    Args:
        on_host: keep them in host memory between uses.
        links: emulated links to other ranks, by rank.
    """
    offload = CPUOffloadPolicy(pin_memory=device.is_cuda) if on_host else OffloadPolicy()
    for each in segments:
        assert each.carrier is not None, "parameters are divided among several replicas"
        mesh = DeviceMesh.from_group(
            each.carrier.group, device.torch_device.type, mesh_dim_names=("replicas",)
        )
        for layer in range(each.segment.first_layer, each.segment.end_layer):
            module = layers.layers[str(layer)]
            fully_shard(module, mesh=mesh, reshard_after_forward=True, offload_policy=offload)
            assert isinstance(module, FSDPModule), "it has become one"
            # Gradients are those of plain sums, and Gloo cannot multiply on the way.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            slow_down(module, Ring(each.segment.ranks, links))
