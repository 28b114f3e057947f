"""Which class of device work a kernel belongs to, by its name and the operation that launched it.

One set of classes for what a profiler saw and for what was predicted, so that they compare:
profilers name kernels (``sm90_xmma_gemm_bf16...``), traces name operations (``aten.mm.default``).
"""

from __future__ import annotations

import functools
import re

from .vocabulary import KERNELS, NAMESPACE

CLASSES = (
    "gemm", "attention", "convolution", "norm", "softmax", "cross_entropy", "embedding",
    "optimizer", "reduce", "elementwise", "copy", "collective", "point_to_point", "other",
)  # fmt: skip
COMMUNICATION = ("collective", "point_to_point")

# Kernels whose name says what they are, whoever launches them.
_TELLING = (
    ("point_to_point", r"nccl.*sendrecv"),
    ("collective", r"nccl|rccl|multimem_|(one|two)_shot_all"),
    ("attention", r"flash|fmha|sdpa|mha_|attention|attn_(fwd|bwd)"),
    ("convolution", r"convolve|conv2d|fprop|[dw]grad.*(nhwc|nchw|engine)|winograd|nchwtonhwc"),
    ("gemm", r"gemm|nvjet|gemv|splitkreduce|cublas|^cijk_"),
    ("norm", r"layer_?norm|rms_?norm|batch_?norm|group_?norm|(^|[^a-z])(ln|bn)_(fwd|bwd|fw|bw)"),
    ("cross_entropy", r"cross_?entropy|nll_loss"),
    ("softmax", r"softmax"),
    ("optimizer", r"adam|lamb(?!da)|(^|_)sgd"),
    ("embedding", r"embedding|indexselect"),
)
# Operations, by their name without namespace and overload.
_OPERATIONS = (
    ("attention", r".*(flash|flex|efficient|cudnn)_attention.*|.*scaled_dot_product.*"),
    (
        "gemm",
        r"(add|b|badd|baddb|_scaled_|_grouped_|_scaled_grouped_)?mm|(addm|m)v"
        r"|matmul|linear|dot|einsum",
    ),
    ("convolution", r".*convolution.*|.*conv[123]d.*"),
    ("norm", r".*(layer|rms|batch|group)_norm.*"),
    ("cross_entropy", r".*(cross_entropy|nll_loss).*"),
    ("softmax", r".*softmax.*"),
    ("embedding", r"_?embedding.*|index_select"),
    ("optimizer", r"_foreach_.*|_fused_(adam|adamw|sgd|adagrad)|_amp_.*"),
    (
        "copy",
        r"_?to_copy|copy|clone|contiguous|cat|stack|.*chunk_cat|split_with_sizes_copy"
        r"|index(_.*)?|gather|scatter(_.*)?|masked_(select|scatter)|repeat.*|fill|zero"
        r"|(zeros|ones|full)(_like)?|roll|flip|pad|constant_pad_nd|all_gather_copy_in",
    ),
    (
        "reduce",
        r"sum|mean|amax|amin|max|min|norm|linalg_vector_norm|all|any|var|var_mean|std"
        r"|argmax|argmin|topk|sort|cumsum|prod|bincount|histc",
    ),
)
# Kernels with names that many operations share.
_SHARED = (
    ("copy", r"copy|transpose|permute|memcpy|memset|catarray|fill|scatter|gather|index"),
    ("reduce", r"reduce|triton_(red|per)|norm|topk|sort|scan"),
    ("elementwise", r"elementwise|vectorized|triton_poi|dropout|gelu|silu|swiglu|rope"),
)
_STREAMING = {
    "grouped_gemm": "gemm",
    "attention_fwd": "attention",
    "attention_bwd": "attention",
    "norm_fwd": "norm",
    "norm_bwd": "norm",
    "softmax_fwd": "softmax",
    "softmax_bwd": "softmax",
    "activation": "elementwise",
    "cast": "elementwise",
    "permute": "copy",
    "token_permute": "copy",
}


# A profile names some hundred kernels and operations, ten thousand times each.
@functools.lru_cache(maxsize=1 << 14)
def class_of_operation(name: str) -> str | None:
    """The class of ``aten.mm.default``, ``aten::mm`` or ``emulated.<kernel>``; None if unknown."""
    namespace, _, rest = name.replace("::", ".").partition(".")
    base = rest.partition(".")[0] or namespace
    if namespace == NAMESPACE:
        kernel = KERNELS.get(base)
        return None if kernel is None else _STREAMING.get(kernel.stands_for, kernel.stands_for)
    # A backward is of the class of its forward, and what works in place of what does not.
    plain = base.removesuffix("_backward").rstrip("_") or base
    for found, pattern in _OPERATIONS:
        if re.fullmatch(pattern, base) or re.fullmatch(pattern, plain):
            return found
    return None


@functools.lru_cache(maxsize=1 << 14)
def class_of_kernel(name: str, operation: str | None = None) -> str:
    """The class of a kernel that a profiler saw, launched by ``operation`` if that is known."""
    lowered = name.lower()
    for found, pattern in _TELLING:
        if re.search(pattern, lowered):
            return found
    by_operation = None if operation is None else class_of_operation(operation)
    if by_operation is not None:
        return by_operation
    for found, pattern in _SHARED:
        if re.search(pattern, lowered):
            return found
    return "other"
