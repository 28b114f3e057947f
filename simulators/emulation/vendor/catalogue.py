"""Which names each emulated module has, and which file here makes them.

``MODULES`` maps a module to its implementations (below this package) and the names taken from
each; ``shown=made`` takes ``made`` and shows it as ``shown``. What is not listed does not exist,
so that a script that tries an import and falls back does as on a machine without it.
"""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]

_APEX: Mapping[str, Names] = {
    "apex": {},
    "apex.contrib": {},
    "apex.contrib.layer_norm": {"apex_norms": ("FastLayerNorm",)},
    "apex.contrib.layer_norm.layer_norm": {"apex_norms": ("FastLayerNormFN", "FastLayerNorm")},
    "apex.multi_tensor_apply": {"multi_tensor": ("MultiTensorApply", "multi_tensor_applier")},
    "apex.normalization": {
        "apex_norms": (
            "FusedLayerNorm",
            "FusedRMSNorm",
            "MixedFusedLayerNorm",
            "MixedFusedRMSNorm",
        )
    },
    "apex.normalization.fused_layer_norm": {
        "apex_norms": (
            "FusedLayerNorm",
            "FusedRMSNorm",
            "MixedFusedLayerNorm",
            "MixedFusedRMSNorm",
            "FusedLayerNormAffineFunction",
            "FusedRMSNormAffineFunction",
            "fused_layer_norm_affine",
            "fused_rms_norm_affine",
        )
    },
    "apex.optimizers": {"fused_optimizers": ("FusedAdam=ApexFusedAdam", "FusedSGD")},
    "amp_C": {
        "multi_tensor": (
            "multi_tensor_adam",
            "multi_tensor_l2norm",
            "multi_tensor_scale",
            "multi_tensor_sgd",
        )
    },
    "fused_weight_gradient_mlp_cuda": {
        "megatron_kernels": (
            "wgrad_gemm_accum_fp16=wgrad_gemm_accum",
            "wgrad_gemm_accum_fp32=wgrad_gemm_accum",
        )
    },
    "scaled_upper_triang_masked_softmax_cuda": {
        "megatron_kernels": ("forward=causal_softmax", "backward=causal_softmax_backward")
    },
    "scaled_masked_softmax_cuda": {
        "megatron_kernels": (
            "forward=masked_softmax",
            "backward=masked_softmax_backward",
            "get_batch_per_block",
        )
    },
    "scaled_softmax_cuda": {
        "megatron_kernels": ("forward=plain_softmax", "backward=plain_softmax_backward")
    },
}

MODULES: Mapping[str, Names] = {**_APEX}
