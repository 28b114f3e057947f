"""Seconds that the host adds: where it must wait for the device, copies to and from its memory,
and what its CPU does there.

Normally the host launches far ahead of the device and only its total time matters
(``passes.sum_blocks``). Where it needs a value from the device (``HostSync``) it stops until the
device has caught up, and what follows starts no sooner than the host launches it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainscout.simulators.predictor.question.cluster import HostShare
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import HostUpdate

# Of a link's peak that large copies from pinned memory reach: packets of 256 bytes have headers of
# some 24 (PCIe), and nothing is published for links between chips.
COPY_EFFICIENCY = 0.85
# Of the peak of its memory that a CPU's Adam reaches: 1, 2, 4, 8 and 10 billion parameters of 28
# bytes in 0.22, 0.51, 1.03, 2.41 and 2.57 s on two Xeon 8168 of 255.9 GB/s (Ren et al. 2021,
# ZeRO-Offload, table 4) are 0.50, 0.43, 0.42, 0.36 and 0.43. Ranks that are not bound to cores of
# their own take up to three times as long (deepspeedai/DeepSpeed issue 6834, pull request 7474).
UPDATE_EFFICIENCY = 0.43


# Bytes from or to memory that is not pinned the driver moves twice: by one core, from or to a
# buffer of its own, and over the link. Published, GB/s pageable and pinned: 5 to 6 and 11 to 12
# (V100, rapidsai/dask-cuda pull request 98), 12 to 18 and 24 to 27 (RTX 4090, NVlabs/cuda-oxide
# 976), 9.7 and 51.5 (RTX PRO 6000, run-ai/runai-model-streamer issue 161): a core's are 10, 23 and
# more, and 12, which is taken. Memory that nobody touched before takes longer: 1.4 and 12.6 (A100,
# pytorch/pytorch 138018). Over a link between chips it is no slower: 93 and 97 GiB/s (GH200,
# vortex-data/vortex 7815).
STAGED_BYTES_PER_S = 12e9


def copy_s(copied_bytes: int, gpu: Gpu, pageable_bytes: int = 0) -> float:
    """Seconds that copying to the host's memory takes, or back, of which ``pageable_bytes`` are in
    memory that is not pinned."""
    staged_bytes = 0 if gpu.c2c_bytes_per_s else pageable_bytes
    link_bytes_per_s = COPY_EFFICIENCY * gpu.host_bytes_per_s
    return copied_bytes / link_bytes_per_s + staged_bytes / STAGED_BYTES_PER_S


def moved_s(moved_bytes: int, host: HostShare) -> float:
    """Seconds in which a host's CPU reads and writes so many bytes of its memory, which the GPUs
    of its node share."""
    return moved_bytes / (UPDATE_EFFICIENCY * host.memory_bytes_per_s)


def update_s(update: HostUpdate, host: HostShare) -> float:
    """Seconds of an update by the host's CPU."""
    link_bytes_per_s = COPY_EFFICIENCY * host.link_bytes_per_s
    steps_s = (
        update.gradient_bytes / link_bytes_per_s,
        moved_s(update.host_bytes, host),
        update.parameter_bytes / link_bytes_per_s,
    )
    return max(steps_s) if update.pipelined else sum(steps_s)


# A linear layer of PyTorch's takes the host 33.2 us forward on GH200 and 37.1 on GB200, both of
# Grace, and 13.5 on DGX H100, of a Xeon 8480C. Transformer Engine's takes 91 and 100 on Grace
# (NVIDIA/TransformerEngine issue 2053), where Megatron-Core's launches are declared with 80.
_ARM_PACE, _ARM_PACE_OF_OTHERS = 2.6, 1.2


def host_pace(framework: Framework, cpu: str) -> float:
    """What the declared times of the host are multiplied by on one of that vendor: an Arm CPU
    takes longer, most where modules are PyTorch's."""
    arm = _ARM_PACE if framework.host_forward_s else _ARM_PACE_OF_OTHERS
    return arm if cpu == "arm" else 1.0


def host_call_s(framework: Framework, cpu: str) -> float:
    """What a call of PyTorch's communication takes an Arm CPU beyond a launch at ``host_pace``, in
    whatever module it is made."""
    if cpu != "arm" or framework.cuda_graphs:
        return 0.0
    return (_ARM_PACE - host_pace(framework, cpu)) * framework.host_launch_s


# Megatron-Core's dropless dispatchers copy three tables of token counts to the host and read
# each: as much work for the host as launching so many kernels.
SYNC_LAUNCHES = 6


def host_lag_s(work: Sequence[tuple[float, float, bool]], *, starts: bool = False) -> float:
    """Seconds the device idles in one of many equal blocks that follow each other.

    ``work`` holds, in launch order, the seconds that the host takes for each operation, those that
    it runs, and whether the host waits for everything before it first. ``starts``: in the first
    one, with nothing left to run when the host begins to launch it.
    """
    host = device = ended = busy_s = 0.0
    # The second block meets the host where the first has left it.
    for _ in range(1 if starts else 2):
        ended, busy_s = device, 0.0
        for launching_s, seconds, waits in work:
            host = (max(host, device) if waits else host) + launching_s
            device = max(device, host) + seconds
            busy_s += seconds
    return max(0.0, device - ended - busy_s)
