"""Rules of what is computed and kept in how many bits."""

from __future__ import annotations

from .gpu import Gpu
from .job import Job
from .pipeline_rules import Broken
from .training import QUANTISED, arithmetic_of


def precision(job: Job) -> Broken:
    """As ``Rule.broken``."""
    lacked = lacks(job.gpu, job.precision)
    for module, own in () if lacked else job.module_precision:
        if (unsupported := lacks(job.gpu, own)) is not None:
            lacked = f"training.module_precision.{module} is {own}, and {unsupported}"
    return None if lacked is None else ("precision", lacked)


def lacks(gpu: Gpu, precision: str) -> str | None:
    """What a GPU would need for a precision and has not, in words."""
    if precision == "mxfp8" and not gpu.architecture.microscaling:
        return f"{gpu.name} has no tensor cores that scale blocks of 32 values"
    if arithmetic_of(precision) not in gpu.peak_flops:
        return f"{gpu.name} has no {precision} arithmetic, only {', '.join(gpu.peak_flops)}"
    return None


def optimizer_states(job: Job) -> Broken:
    """As ``Rule.broken``."""
    if job.recipe.optimizer_states is None:
        return None
    if job.training.optimizer == "sgd":
        return "optimizer_states", "the precision-aware optimizer is Adam"
    if job.training.optimizer == "adam_pure_bf16":
        return "optimizer_states", "an optimizer without an fp32 copy of the weights keeps no less"
    if job.recipe.zero_stage == 0:
        return "optimizer_states", "the precision-aware optimizer needs a sharded one: zero_stage"
    if job.keeps_fp32:
        return "optimizer_states", "weights that are kept in fp32 have no other copy"
    return None


def quantised_parameters(job: Job) -> Broken:
    """As ``Rule.broken``."""
    recipe, field = job.recipe, "fp8_param_gather"
    if not recipe.fp8_param_gather or job.precision not in QUANTISED:
        return None
    if recipe.zero_stage == 0:
        return field, "parameters kept in 8 bits need a sharded optimizer: zero_stage >= 1"
    if recipe.optimizer_offload and job.precision != "fp8":
        # As Megatron-LM's validate_args has it.
        return field, "the optimizer on the host updates parameters of delayed scales (fp8) only"
    return None


def quantised_products(job: Job) -> Broken:
    """As ``Rule.broken``."""
    recipe, precision = job.recipe, job.precision
    if precision not in QUANTISED:
        return None
    if recipe.fp8_output_proj and precision != "mxfp8":
        return "fp8_output_proj", f"logits are multiplied in 8 bits in mxfp8, not in {precision}"
    if recipe.fp8_output_proj and job.model.tied_embeddings:
        return "fp8_output_proj", "the embedding, which is the output's weight too, has 16 bits"
    if recipe.fp8_dot_product_attention and precision == "fp8_block":
        return "fp8_dot_product_attention", "no attention takes blocks of 128 (fp8_block)"
    if recipe.fp8_dot_product_attention and job.attention == "unfused":
        return "fp8_dot_product_attention", "unfused attention multiplies in 16 bits"
    return None
