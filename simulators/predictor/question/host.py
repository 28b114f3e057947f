"""What a GPU has of its node's host: memory, and the rates of that and of the way to it."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu


@dataclass(frozen=True)
class HostShare:
    """A GPU's share of its node's host, all GPUs of which do the same at once."""

    memory_bytes: float
    """Of the host's memory."""
    memory_bytes_per_s: float
    """Of the peak of the host's memory."""
    link_bytes_per_s: float
    """Peak per direction between both."""

    @classmethod
    def of(cls, gpu: Gpu, cluster: Cluster) -> HostShare:
        server, gpus = gpu.server, cluster.gpus_per_node
        usual = (server.host_memory_bytes, server.host_memory_bytes_per_s)
        declared = (cluster.host_memory_bytes, cluster.host_memory_bytes_per_s)
        memory_bytes, memory_bytes_per_s = (
            each / server.gpus_per_node if own is None else own / gpus
            for own, each in zip(declared, usual, strict=True)
        )
        return cls(memory_bytes, memory_bytes_per_s, gpu.host_bytes_per_s)
