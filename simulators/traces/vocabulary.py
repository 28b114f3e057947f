"""The emulated vendor kernels a trace may name, what each argument is, and what it stands for.

An operation ``emulated.<kernel>`` is one call into a library of fused kernels (Transformer Engine,
Apex, flash-attn, grouped_gemm, Megatron's extensions). The table here is the definition: emulation
registers exactly these kernels, with these signatures, and readers name arguments by it. Reading
a trace needs no torch; ``schema`` is nevertheless written as torch's dispatcher reads it, where
``Tensor(a!)`` is written as well as read.

What an operation is on the device, by ``stands_for``:

``gemm``
    ``C[m, n] = L R``, where ``m, n`` is the shape of what is written (``out`` or the first output)
    and ``k`` is contracted. ``layout`` is that of the call: TN ``L[m, k] R[n, k]``, NN
    ``L[m, k] R[k, n]``, NT ``L[k, m] R[k, n]``; leading dimensions of L (TN, NN) or of both (NT)
    are flattened. ``use`` says what it computes: forward, dgrad, wgrad, other. 8-bit operands on
    Hopper are always called TN, on transposed copies; ``use`` tells the passes apart there.
    ``accumulate`` adds to ``out``. ``recipe`` is empty unless operands are quantised.
``grouped_gemm``
    One product for each of ``splits``, by rows of ``left`` (and, NT, of ``right``), each operand
    being one tensor for all groups or a list of one for each. ``one_kernel``: a grouped kernel
    rather than one launch after another on a few streams.
``attention_fwd``, ``attention_bwd``
    Fused attention, ``layout`` one of sbhd, bshd (4 dimensions, so named) and thd (packed tokens,
    heads, width). Keys may have fewer heads. ``sequences`` are packed or batched, of up to
    ``max_q``/``max_k`` tokens. ``mask`` is causal, causal_bottom_right (aligned at the last token
    when lengths differ), none or arbitrary; ``window`` limits how far left and right a token looks
    (-1: no limit). ``kernel`` is flash2, flash3 or cudnn.
anything else
    A memory-bound kernel of that class of ``workload.ir.Streaming``. Unless said otherwise it
    reads each tensor argument once and writes each output once; what it changes in place it does
    both: ``moved_bytes`` counts so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from simulators.errors import InputError
from simulators.traces.events import Argument, Op, TensorSpec

NAMESPACE = "emulated"
# Bytes an element of torch's types takes; sub-byte types do not occur.
DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
# Multi-tensor kernels take so many tensors a launch, by the number of lists they walk together,
# and so many chunks of so many elements (Apex, csrc/multi_tensor_apply.cuh; fused optimizers of
# both libraries call it with these chunks).
_TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_CHUNKS_PER_LAUNCH = 320
_CHUNK_ELEMENTS = 2048 * 32


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
        "grouped_gemm(Tensor[] left, Tensor[] right, int[] splits, str layout, str use,"
        " str out_dtype, bool one_kernel, str recipe) -> Tensor",
        "grouped_gemm",
        ("out",),
        note="rows of out are those of left; right is a weight for each group, or one of three"
        " dimensions that holds all",
    ),
    Kernel(
        "grouped_gemm_into(Tensor[] left, Tensor[] right, Tensor(a!)[] out, int[] splits,"
        " str layout, str use, bool accumulate, bool one_kernel, str recipe) -> ()",
        "grouped_gemm",
        (),
        note="weight gradients, out[i] = left_i^T right_i",
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
        "quantize(Tensor input, str recipe, str dtype, bool rowwise, bool columnwise) -> Tensor[]",
        "cast",
        ("rowwise data", "rowwise scales", "columnwise data", "columnwise scales"),
        note="one kernel for both uses; recipe is delayed, current, mxfp8 or blockwise. Those"
        " outputs that the recipe and the uses have: delayed and current have no scales here (one"
        " number each, kept apart) and transposed columnwise data; mxfp8 has a byte for 32"
        " elements along the inner (rowwise) or outer (columnwise) dimension; blockwise fp32 for"
        " 128 elements and transposed columnwise data",
    ),
    Kernel(
        "quantize_bias_grad(Tensor input, str recipe, str dtype, bool rowwise, bool columnwise)"
        " -> Tensor[]",
        "cast",
        ("bias_grad", "as quantize"),
        launches=2,
        note="and sums over rows, in a second small kernel that adds partial sums",
    ),
    Kernel(
        "quantize_into(Tensor input, Tensor(a!)[] out, str recipe) -> ()",
        "cast",
        (),
        note="a weight into its cached 8-bit copy, out as quantize; it only writes out",
        read={"out": 0},
    ),
    Kernel(
        "quantize_weight(Tensor input, str dtype, bool columnwise) -> Tensor[]",
        "cast",
        ("rowwise data", "rowwise scales", "columnwise data", "columnwise scales"),
        note="blockwise recipe: blocks of 128 x 128",
    ),
    Kernel(
        "grouped_quantize(Tensor input, int[] splits, str recipe, str dtype, bool rowwise,"
        " bool columnwise) -> Tensor[]",
        "cast",
        ("as quantize, for each group in turn",),
        note="one kernel casts the rows of every group",
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
        note="mxfp8: scales in the order tensor cores read them",
    ),
    Kernel(
        "update_amax_and_scale(Tensor reduced, Tensor(a!)[] histories, Tensor(b!)[] scales) -> ()",
        "elementwise",
        (),
        note="delayed scaling: once per step for all tensors of a pass",
    ),
    Kernel(
        "dequantize(Tensor input, str recipe, str out_dtype) -> Tensor",
        "cast",
        ("out",),
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


def kernel_of(op: Op) -> Kernel | None:
    """What ``emulated.<kernel>`` or ``emulated.<kernel>.default`` is; None for other operations.

    Raises:
        InputError: an emulated kernel this version does not know.
    """
    namespace, _, rest = op.name.partition(".")
    if namespace != NAMESPACE:
        return None
    name = rest.removesuffix(".default")
    if name not in KERNELS:
        raise InputError("trace.op.name", op.name, "is no known emulated kernel", KERNELS)
    return KERNELS[name]


def arguments(op: Op) -> dict[str, Argument]:
    """The arguments of an emulated kernel by name.

    Raises:
        InputError: it is no emulated kernel, or has another number of arguments.
    """
    kernel = kernel_of(op)
    if kernel is None:
        raise InputError("trace.op.name", op.name, "is no emulated kernel")
    if len(op.inputs) != len(kernel.arguments):
        raise InputError(
            f"trace.op[{op.name}].inputs",
            len(op.inputs),
            "is not how many arguments it takes",
            f"{len(kernel.arguments)}: {', '.join(kernel.arguments)}",
        )
    return dict(zip(kernel.arguments, op.inputs, strict=True))


def tensors(argument: Argument) -> Iterator[TensorSpec]:
    """The tensors in an argument: itself, those of a list, or none."""
    if isinstance(argument, TensorSpec):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from tensors(item)


def tensor_bytes(tensor: TensorSpec) -> int:
    """Bytes of a tensor's elements.

    Raises:
        InputError: its dtype is not known.
    """
    if tensor.dtype not in DTYPE_BYTES:
        raise InputError("trace.tensor.dtype", tensor.dtype, "is not known", DTYPE_BYTES)
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]


def moved_bytes(op: Op) -> int:
    """Bytes a memory-bound emulated kernel reads plus writes."""
    kernel = kernel_of(op)
    if kernel is None:
        raise InputError("trace.op.name", op.name, "is no emulated kernel")
    total = sum(tensor_bytes(tensor) for tensor in op.outputs)
    for name, argument in arguments(op).items():
        size = sum(tensor_bytes(tensor) for tensor in tensors(argument))
        total += size * (kernel.read or {}).get(name, 1)
        if name in kernel.mutated:
            total += size
    return total


def launches(op: Op) -> int:
    """How many kernels a memory-bound emulated operation really launches."""
    kernel = kernel_of(op)
    if kernel is None:
        raise InputError("trace.op.name", op.name, "is no emulated kernel")
    if not kernel.name.startswith("multi_tensor"):
        return kernel.launches
    lists = [list(tensors(argument)) for argument in op.inputs if isinstance(argument, tuple)]
    walked = [each for each in lists if each]
    if not walked:
        return 0
    chunks = sum(math.ceil(math.prod(each.shape) / _CHUNK_ELEMENTS) for each in walked[0])
    per_launch = _TENSORS_PER_LAUNCH[len(walked)]
    count = max(math.ceil(chunks / _CHUNKS_PER_LAUNCH), math.ceil(len(walked[0]) / per_launch))
    return count + (kernel.name == "multi_tensor_l2norm")
