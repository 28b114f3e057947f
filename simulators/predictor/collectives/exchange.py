"""Tokens on their way to experts and back by kernels that store them where they are used.

NCCL copies a message through buffers, four passes over memory for each byte sent. HybridEP, the
dispatcher of racks whose servers share an NVLink domain, has its kernels read a token once and
store a copy in the memory of every GPU that hosts one of its experts (dispatch), or read the
copies there, add them up and store the sum (combine). With ``n`` GPUs

    time = bytes (n - 1) / n / (share x NVLink rate) + peer x (n - 1)

fitted to its own benchmark (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md: GB200,
4096 tokens of 7168 in 16 bits to 8 experts each, 8 to 36 GPUs, 32 SMs, kernels alone; dispatch and
combine, ten rates, all within 3.5 %). The SMs are those that Megatron-Bridge's benchmarks give it.
Inside one server DeepEP's kernels copy through buffers as NCCL's do, and between domains the
network decides: both are priced as NCCL's exchange.
"""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.collectives.price import CollectivePrice, price_collective
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Collective, Communicator

SHARE_OF_NVLINK = 0.768
PEER_S = 2.65e-6
SMS = 32


def price_exchange(
    op: Collective, communicator: Communicator, gpu: Gpu, cluster: Cluster
) -> CollectivePrice:
    """Price one collective call: NCCL's, or an exchange by kernels that store tokens directly.

    Raises:
        InputError: as ``price_collective``.
    """
    price = price_collective(op.kind, op.bytes, communicator, gpu, cluster, op.dtype)
    racks = cluster.domain > cluster.gpus_per_node and communicator.nodes == 1
    if not (op.stored_bytes and racks and price.seconds):
        return price
    sent = op.bytes * (1 - 1 / communicator.size)
    seconds = sent / (SHARE_OF_NVLINK * gpu.nvlink_bytes_per_s) + PEER_S * (communicator.size - 1)
    return replace(
        price,
        seconds=seconds,
        channels=SMS,
        wire_bytes_per_s=op.stored_bytes / seconds,
    )
