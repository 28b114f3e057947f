"""What a prediction takes for granted, in words, so that whoever acts on it knows."""

from __future__ import annotations

from simulators.job import Job
from simulators.replay.stragglers import SPEED_SPREAD


def assumptions_of(job: Job) -> tuple[str, ...]:
    """What the replay assumes about this job beyond its prices, most general first."""
    recipe = job.recipe
    stated = [
        "CUDA context and NCCL buffers are estimated, memory fragmentation is left out",
    ]
    if job.world_size > 1:
        stated.append(
            f"GPUs' speeds spread by {SPEED_SPREAD[job.gpu.architecture]:.0%}, "
            "and no link is slower than its peers"
        )
    if job.model.moe is not None:
        stated.append("experts are evenly loaded")
    if recipe.tp_comm_overlap and not job.framework.batch_first:
        stated.append("a GEMM cut up for TP overlap is as efficient as a whole one")
    if recipe.vpp > 1:
        stated.append("pipeline transfers in flight do not share a NIC")
    return tuple(stated)
