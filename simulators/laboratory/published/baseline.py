"""The predictor to beat: half of peak, plus tensor-parallel communication, and nothing else."""

from __future__ import annotations

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import ACTIVATION_BYTES

FLAT_EFFICIENCY = 0.5


def flat_step_time_s(job: Job) -> float:
    """Seconds of a step at a flat share of peak, without bubble, optimizer or data parallelism.

    The step's hardware FLOPs run at ``FLAT_EFFICIENCY`` of the dense peak. Each layer of each
    micro-batch adds two all-reduces of its activations in the forward and two in the backward
    pass (two more where the forward is recomputed), at the ring's ``2 (t - 1) / t`` of NVLink's
    published bandwidth (of the NIC's where the group leaves the NVLink domain). This is what
    the analytical calculators print that know no pipeline (llm-analysis at its suggested
    efficiency).
    """
    recipe = job.recipe
    flops_s = step_flops(job).hardware / (
        job.world_size * FLAT_EFFICIENCY * job.gpu.peak(job.precision)
    )
    if recipe.tp == 1:
        return flops_s
    passes = 6 if recipe.recompute == "full" else 4
    tokens = recipe.micro_batch * job.sequence_length / recipe.cp
    message = tokens * job.model.hidden_size * ACTIVATION_BYTES[job.precision]
    ring = 2 * (recipe.tp - 1) / recipe.tp
    layers = job.model.num_layers / recipe.pp
    calls = passes * layers * job.num_micro_batches
    return flops_s + calls * message * ring / _bytes_per_s(job)


def _bytes_per_s(job: Job) -> float:
    cluster = job.cluster
    if job.recipe.tp <= cluster.domain and job.gpu.nvlink_bytes_per_s:
        return job.gpu.nvlink_bytes_per_s
    if job.recipe.tp <= cluster.gpus_per_node:
        return job.gpu.pcie_bytes_per_s
    return cluster.nics_per_node * cluster.nic_gbps * 1e9 / 8 / cluster.gpus_per_node
