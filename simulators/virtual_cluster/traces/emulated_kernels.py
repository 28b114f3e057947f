"""The table of emulated vendor kernels: signatures, outputs, and what each is on the device.

``traces.vocabulary`` says what the columns mean and reads traces by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Kernel:
    """One emulated kernel.

    ``schema`` is ``name(arguments) -> outputs``; ``launches`` how many kernels really run for one
    call (multi-tensor kernels: per launch of theirs); ``outputs`` and ``note`` are for readers.
    ``read`` and ``written`` name tensors that move other than once: how often they are read or
    written, in ``moved_bytes``.
    """

    schema: str
    stands_for: str
    outputs: tuple[str, ...]
    launches: int = 1
    note: str = ""
    read: Mapping[str, int] | None = None

    @cached_property
    def name(self) -> str:
        return self.schema.partition("(")[0]

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments, in the order of ``Op.inputs``."""
        inside = self.schema.partition("(")[2].rpartition(") ->")[0]
        # Annotations such as (a!) hold no commas, so arguments are what commas separate.
        return tuple(part.split()[-1] for part in inside.split(",") if part.strip())

    @cached_property
    def mutated(self) -> frozenset[str]:
        """Names of the arguments that are written."""
        inside = self.schema.partition("(")[2].rpartition(") ->")[0]
        return frozenset(
            part.split()[-1] for part in inside.split(",") if re.search(r"\(\w!\)", part)
        )


_GEMMS = (
    Kernel(
        "gemm(Tensor left, Tensor right, str layout, str use, str out_dtype, Tensor? bias,"
        " str recipe) -> Tensor",
        "gemm",
        ("out",),
        note="bias is added in the epilogue",
    ),
    Kernel(
        "gemm_bias_grad(Tensor left, Tensor right, str layout, str use, str out_dtype,"
        " str recipe) -> (Tensor, Tensor)",
        "gemm",
        ("out", "bias_grad"),
        note="a weight gradient whose epilogue also sums left over k",
    ),
    Kernel(
        "gemm_into(Tensor left, Tensor right, Tensor(a!) out, str layout, str use,"
        " bool accumulate, str recipe) -> ()",
        "gemm",
        (),
        note="writes or adds to out: a weight gradient into the main gradient",
    ),
    Kernel(
        "gemm_into_bias_grad(Tensor left, Tensor right, Tensor(a!) out, str layout, str use,"
        " bool accumulate, str bias_dtype, str recipe) -> Tensor",
        "gemm",
        ("bias_grad",),
        note="as gemm_into, and sums left over k",
    ),
    Kernel(
        "grouped_gemm_into(Tensor[] left, Tensor[] right, Tensor(a!)[] out, int[] splits,"
        " str layout, str use, bool accumulate, bool one_kernel, str recipe) -> ()",
        "grouped_gemm",
        (),
        note="rows of out are those of left, right is a weight for each group, or one of three"
        " dimensions that holds all; weight gradients: out[i] = left_i^T right_i",
    ),
)

_ATTENTION = (
    Kernel(
        "attention_fwd(Tensor query, Tensor key, Tensor value, str layout, str mask, int[] window,"
        " float dropout, float scale, int sequences, int max_q, int max_k, str kernel)"
        " -> (Tensor, Tensor, Tensor)",
        "attention_fwd",
        ("out", "softmax_stats", "rng_state"),
    ),
    Kernel(
        "attention_bwd(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor out,"
        " Tensor softmax_stats, Tensor(a!) grad_query, Tensor(b!) grad_key, Tensor(c!) grad_value,"
        " str layout, str mask, int[] window, float dropout, float scale, int sequences,"
        " int max_q, int max_k, str kernel) -> ()",
        "attention_bwd",
        (),
        launches=3,
        note="a product of out and its gradient, the main kernel, a conversion of the query's",
    ),
    Kernel(
        "attention_merge_stats(Tensor(a!) stats, Tensor step_stats) -> ()",
        "elementwise",
        (),
        note="context parallel: log-sum-exp over the steps of the ring so far",
    ),
    Kernel(
        "attention_merge_output(Tensor(a!) out, Tensor step_out, Tensor stats, Tensor step_stats)"
        " -> ()",
        "elementwise",
        (),
        note="context parallel: adds one step's output, rescaled",
    ),
)

_NORMS = (
    Kernel(
        "layer_norm_fwd(Tensor input, Tensor weight, Tensor? bias, float eps)"
        " -> (Tensor, Tensor, Tensor)",
        "norm_fwd",
        ("out", "mean", "rsigma"),
    ),
    Kernel(
        "layer_norm_bwd(Tensor grad_output, Tensor input, Tensor weight, Tensor? mean,"
        " Tensor rsigma) -> (Tensor, Tensor, Tensor)",
        "norm_bwd",
        ("grad_input", "grad_weight", "grad_bias"),
        launches=2,
    ),
    Kernel(
        "rms_norm_fwd(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)",
        "norm_fwd",
        ("out", "rsigma"),
    ),
    Kernel(
        "rms_norm_bwd(Tensor grad_output, Tensor input, Tensor weight, Tensor rsigma)"
        " -> (Tensor, Tensor)",
        "norm_bwd",
        ("grad_input", "grad_weight"),
        launches=2,
    ),
    Kernel(
        "layer_norm_quantize_fwd(Tensor input, Tensor weight, Tensor? bias, float eps,"
        " str recipe, str dtype) -> (Tensor, Tensor, Tensor)",
        "norm_fwd",
        ("out", "mean", "rsigma"),
        note="writes 8 bits and finds their largest value",
    ),
    Kernel(
        "rms_norm_quantize_fwd(Tensor input, Tensor weight, float eps, str recipe, str dtype)"
        " -> (Tensor, Tensor)",
        "norm_fwd",
        ("out", "rsigma"),
        note="writes 8 bits and finds their largest value",
    ),
)

_POINTWISE = (
    Kernel(
        "fused_softmax_fwd(Tensor input, Tensor? mask, float scale, str kind) -> Tensor",
        "softmax_fwd",
        ("out",),
        note="kind is causal, masked or plain",
    ),
    Kernel(
        "fused_softmax_bwd(Tensor(a!) grad, Tensor out, float scale, str kind) -> ()",
        "softmax_bwd",
        (),
        note="the gradient is replaced in place",
    ),
    Kernel(
        "rope_fwd(Tensor input, Tensor frequencies, str layout, bool interleaved) -> Tensor",
        "elementwise",
        ("out",),
    ),
    Kernel(
        "rope_bwd(Tensor grad_output, Tensor frequencies, str layout, bool interleaved) -> Tensor",
        "elementwise",
        ("grad_input",),
    ),
    Kernel(
        "rope_qkv_fwd(Tensor qkv, Tensor query_frequencies, Tensor key_frequencies, int[] split,"
        " str layout, bool interleaved) -> (Tensor, Tensor, Tensor)",
        "elementwise",
        ("query", "key", "value"),
        note="splits the joined projection and turns queries and keys",
    ),
    Kernel(
        "rope_qkv_bwd(Tensor grad_query, Tensor grad_key, Tensor grad_value,"
        " Tensor query_frequencies, Tensor key_frequencies, int[] split, str layout,"
        " bool interleaved) -> Tensor",
        "elementwise",
        ("grad_qkv",),
    ),
    Kernel(
        "activation_fwd(Tensor input, str function) -> Tensor",
        "elementwise",
        ("out",),
        note="function: gelu, relu, silu, srelu, qgelu and their gated forms geglu, reglu, swiglu,"
        " qgeglu, sreglu, which halve the width",
    ),
    Kernel(
        "activation_bwd(Tensor grad_output, Tensor input, str function) -> Tensor",
        "elementwise",
        ("grad_input",),
    ),
    Kernel(
        "cross_entropy_stats(Tensor logits, Tensor target) -> Tensor",
        "cross_entropy",
        ("stats",),
        note="maximum, sum of exponentials and the target's logit of each row",
    ),
    Kernel(
        "cross_entropy_fwd(Tensor(a!) logits, Tensor target, Tensor stats, bool reduce) -> Tensor",
        "cross_entropy",
        ("loss",),
        note="the loss, and the gradient over the logits in place",
    ),
    Kernel(
        "cross_entropy_bwd(Tensor(a!) grad_logits, Tensor grad_output) -> ()",
        "elementwise",
        (),
        note="scales the gradient made in the forward pass",
    ),
)

_QUANTISE = (
    Kernel(
        "quantize_into(Tensor input, Tensor(a!)[] out, str recipe) -> ()",
        "cast",
        (),
        note="one kernel for both uses, and with delayed scaling for all groups of rows. Out is"
        " only written: row-wise data and scales, then column-wise ones, as far as recipe and uses"
        " have them. Delayed and current have no scales here (one number each, kept apart) and"
        " transposed column-wise data; mxfp8 has a byte for 32 elements along the inner (row-wise)"
        " or outer (column-wise) dimension; blockwise fp32 for 128 elements (weights: for"
        " 128 x 128) and transposed column-wise data",
        read={"out": 0},
    ),
    Kernel(
        "quantize_into_bias_grad(Tensor input, Tensor(a!)[] out, str recipe) -> Tensor",
        "cast",
        ("bias_grad",),
        launches=2,
        note="as quantize_into, and sums over rows: a second small kernel adds partial sums",
        read={"out": 0},
    ),
    Kernel(
        "amax(Tensor input) -> Tensor",
        "reduce",
        ("amax",),
        note="current scaling: the largest absolute value",
    ),
    Kernel(
        "scale_from_amax(Tensor(a!) amax, str dtype) -> Tensor",
        "elementwise",
        ("scale",),
        note="current scaling: one number",
    ),
    Kernel(
        "fp8_transpose(Tensor input) -> Tensor",
        "cast",
        ("out",),
        note="a transposed copy of 8-bit data, for tensor cores that take one layout",
    ),
    Kernel(
        "swizzle_scales(Tensor scales) -> Tensor",
        "cast",
        ("out",),
        note="mxfp8: scales in the order of tensor cores; blockwise: gathered ones put together",
    ),
    Kernel(
        "update_amax_and_scale(Tensor reduced, Tensor(a!)[] histories, Tensor(b!)[] scales) -> ()",
        "elementwise",
        (),
        note="delayed scaling: once per step for all tensors of a pass",
    ),
)

_OPTIMIZERS = (
    Kernel(
        "multi_tensor_adam(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] exp_avgs,"
        " Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] masters) -> ()",
        "optimizer",
        (),
        note="masters: fp32 copies that are stepped, params then being written only",
    ),
    Kernel(
        "multi_tensor_sgd(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] momenta,"
        " Tensor(c!)[] copies) -> ()",
        "optimizer",
        (),
        note="copies: 16-bit copies of params that are written too",
    ),
    Kernel(
        "multi_tensor_l2norm(Tensor[] tensors, bool per_tensor) -> (Tensor, Tensor)",
        "reduce",
        ("norm", "norm of each"),
        note="and a small kernel that adds up the partial sums",
    ),
    Kernel(
        "multi_tensor_scale(Tensor[] inputs, Tensor(a!)[] outputs, float scale) -> ()",
        "elementwise",
        (),
        note="outputs may be inputs; they are only written",
        read={"outputs": 0},
    ),
)

_MOE = (
    Kernel(
        "moe_row_id_map(Tensor routing_map) -> Tensor",
        "permute",
        ("row_id_map",),
        launches=3,
        note="where each token's copies go, from the mask of token by expert",
    ),
    Kernel(
        "pad_rows(Tensor rows, Tensor(a!) out) -> ()",
        "permute",
        (),
        note="rows of each group into (or out of) a buffer with room to a multiple; out is only"
        " written",
        read={"out": 0},
    ),
    Kernel(
        "moe_chunk_row_id_map(Tensor splits, Tensor order, int rows) -> Tensor",
        "permute",
        ("row_id_map",),
    ),
    Kernel(
        "moe_permute(Tensor tokens, Tensor row_id_map, Tensor? probs, int rows) -> Tensor[]",
        "permute",
        ("permuted", "permuted probs, if given"),
        note="reads a token once, writes a row for each of its experts",
    ),
    Kernel(
        "moe_unpermute(Tensor permuted, Tensor row_id_map, Tensor? probs, Tensor? permuted_probs,"
        " int rows) -> Tensor[]",
        "permute",
        ("tokens", "probs, if permuted_probs is given"),
        note="adds up the rows of each token, weighted by probs if given",
    ),
    Kernel(
        "moe_unpermute_bwd(Tensor grad_output, Tensor permuted, Tensor row_id_map, Tensor probs)"
        " -> (Tensor, Tensor)",
        "permute",
        ("grad_permuted", "grad_probs"),
    ),
    Kernel(
        "moe_sort_chunks(Tensor tokens, Tensor row_id_map, Tensor? probs) -> Tensor[]",
        "permute",
        ("sorted", "sorted probs, if given"),
    ),
    Kernel(
        "moe_router_fwd(Tensor logits, Tensor? expert_bias, int topk, str score)"
        " -> (Tensor, Tensor, Tensor)",
        "elementwise",
        ("probs", "routing_map", "scores"),
        note="scores, the choice of experts and the mask in one kernel",
    ),
    Kernel(
        "moe_router_bwd(Tensor grad_probs, Tensor routing_map, Tensor scores, int topk, str score)"
        " -> Tensor",
        "elementwise",
        ("grad_logits",),
    ),
    Kernel(
        "moe_aux_scores_fwd(Tensor logits, int topk, str score) -> (Tensor, Tensor, Tensor)",
        "elementwise",
        ("routing_map", "scores", "intermediate"),
    ),
    Kernel(
        "moe_aux_scores_bwd(Tensor grad_scores, Tensor intermediate, int topk, str score)"
        " -> Tensor",
        "elementwise",
        ("grad_logits",),
    ),
    Kernel(
        "moe_aux_loss_fwd(Tensor probs, Tensor tokens_per_expert, int tokens, int experts,"
        " int topk, float coefficient) -> (Tensor, Tensor)",
        "reduce",
        ("loss", "coefficient"),
    ),
    Kernel(
        "moe_aux_loss_bwd(Tensor coefficient, Tensor tokens_per_expert, Tensor grad_loss,"
        " int rows) -> Tensor",
        "elementwise",
        ("grad_probs",),
    ),
)

_TABLES = (_GEMMS, _ATTENTION, _NORMS, _POINTWISE, _QUANTISE, _OPTIMIZERS, _MOE)
KERNELS: Mapping[str, Kernel] = {kernel.name: kernel for table in _TABLES for kernel in table}
