"""What fields of a declared framework that name one of several things may say."""

from __future__ import annotations

EAGER_LOSSES = ("eager", "shifted")
CHOICES = {
    "attention": ("flash", "flash2", "flash1", "flash1_triton", "unfused"),
    "fusion": ("fused", "compiled", "eager"),
    "rope": ("halves", "pairs", "complex", "packed"),
    "pipeline_buffers": ("released", "outputs", "preallocated"),
    "gradient_bucket": ("none", "backward", "gradient"),
    "cross_entropy": (
        *("in_place", "pieces", "compiled", "returned", "fp32", "fp32_in_place", "copies"),
        *(*EAGER_LOSSES, "uncast"),
    ),
    "masked_dispatch": ("", "sequence", "micro_batch"),
    "written_dispatch": ("", "half", "atomic", "fp32"),
    "delta_rule": ("fused", "rows", "solved"),
    "host_optimizer": ("none", "pipelined", "serial"),
    "moments_8bit": ("none", "layers", "all"),
}
LACKS = (
    *("experts", "latent_attention", "multi_token_prediction", "fp8", "quantised_weights"),
    "several_packs",
)
