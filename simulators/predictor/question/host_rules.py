"""Rules of what lies on the host: activations, and states of the optimizer."""

from __future__ import annotations

from .job import Job


def offloading(job: Job) -> tuple[str, str] | None:
    """As ``Rule.broken``."""
    recipe, field = job.recipe, "offloaded_layers"
    if not recipe.offloaded_layers:
        return None
    # As Megatron-Core's configuration refuses them.
    if recipe.pp > 1:
        return field, "activations are copied to the host without a pipeline only"
    if recipe.recompute != "none":
        return field, "activations that are recomputed are not copied to the host: recompute=none"
    if recipe.offloaded_layers >= job.model.num_layers:
        return field, f"leaves none of the {job.model.num_layers} layers on the GPU"
    if job.framework.cuda_graphs:
        return field, "copies to the host cannot be replayed as a CUDA graph: cuda_graphs"
    return None


def host_optimizer(job: Job) -> tuple[str, str] | None:
    """As ``Rule.broken``."""
    recipe, field, how = job.recipe, "optimizer_offload", job.framework.host_optimizer
    if not recipe.optimizer_offload:
        return None
    if how == "none":
        return field, f"{job.framework.name} has no optimizer on the host"
    if job.training.optimizer == "sgd" or job.keeps_fp32:
        return field, "the optimizer on the host is Adam of 16-bit weights"
    if recipe.optimizer_states is not None or job.optimizer == "adam_pure_bf16":
        return field, "the optimizer on the host keeps fp32 states: optimizer_states=null"
    if how == "pipelined" and recipe.zero_stage != 1:
        return field, "the hybrid optimizer is the distributed one: zero_stage=1"
    if how == "serial" and recipe.zero_stage < 2:
        return field, "ZeRO-Offload keeps gradients on the host too: zero_stage >= 2"
    if how == "serial" and recipe.zero_stage == 2 and recipe.optimizer_offload < 100:
        return field, "a part of the optimizer stays on the GPU under zero_stage=3 only"
    return None
