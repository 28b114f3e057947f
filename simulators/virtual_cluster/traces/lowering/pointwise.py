"""Elementwise operations, and everything whose cost is the bytes it goes over once."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec

from .tensors import FREE, Lowered, elements, in_place, moved, on_device, short_name

RULE = "elementwise"
UNKNOWN_RULE = "unknown"
UNVECTORISED_BYTES = 10

# Names as in ``aten``; the in-place forms (a trailing underscore) are meant too.
_WORDS = """
    __and__ __iand__ __ior__ __lshift__ __or__ __rshift__ __xor__ abs acos acosh add addcdiv
    addcmul and angle asin asinh atan atan2 atanh bernoulli bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip
    complex conj_physical copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp
    exp2 expm1 float_power floor floor_divide fmax fmin fmod frac ge greater gt heaviside hypot
    i0 igamma isclose isfinite isinf isnan isneginf isposinf ldexp le lerp less lgamma log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit
    lt masked_fill maximum minimum mul multiply nan_to_num ne neg nextafter not_equal polar
    polygamma positive pow rad2deg reciprocal remainder round rsqrt rsub sgn sigmoid sign
    signbit sin sinc sinh sqrt square sub subtract tan tanh tril triu true_divide trunc where
    xlogy

    _prelu_kernel _prelu_kernel_backward celu elu elu_backward gelu gelu_backward glu
    glu_backward hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward leaky_relu leaky_relu_backward
    log_sigmoid_backward log_sigmoid_forward logit_backward masked_scale
    masked_scatter_backward mish mish_backward prelu relu relu6 rrelu rrelu_with_noise selu
    sigmoid_backward silu silu_backward softplus softplus_backward softshrink
    softshrink_backward tanh_backward threshold threshold_backward

    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
    huber_loss huber_loss_backward kl_div l1_loss mse_loss mse_loss_backward smooth_l1_loss
    smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward

    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
    _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool2d_backward
    affine_grid_generator avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d
    avg_pool3d_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
    cudnn_grid_sampler cudnn_grid_sampler_backward
    grid_sampler_3d_backward max_pool2d max_pool2d_backward max_pool2d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
    reflection_pad1d reflection_pad2d reflection_pad2d_backward replication_pad1d
    replication_pad2d replication_pad2d_backward upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
    upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward

    _amp_update_scale slice_backward select_backward diagonal_backward unfold_backward
"""
NAMES = frozenset(_WORDS.split())
# Of these, what computes so much of each element that memory does not set the pace alone.
_ACTIVATIONS = frozenset(
    f"{name}{pass_}" for name in ("gelu", "glu", "mish", "silu") for pass_ in ("", "_backward")
)
# Gradients of views: a tensor of zeros is made, then the part that has a gradient written.
_VIEW_GRADIENTS = frozenset({"slice_backward", "select_backward", "diagonal_backward"})


def elementwise(op: Op) -> Lowered:
    """One kernel that reads every tensor once and writes its results once."""
    return _by_bytes(op, RULE, estimated=False, least=unvectorised_bytes(op))


def unknown(op: Op) -> Lowered:
    """An operation nothing is known of, taken to be memory-bound."""
    return _by_bytes(op, UNKNOWN_RULE, estimated=True)


def unvectorised_bytes(op: Op) -> int:
    """What an elementwise kernel takes at least, as bytes, where it goes element by element.

    PyTorch's ``TensorIterator`` reads several elements at once only from tensors that lie in
    memory alike. Of all others it works out the place of each element, and takes as long for two
    bytes as for eight: 0.28 to 0.36 x 10^12 elements a second measured on one H100 80 GB (SXM),
    torch 2.11, CUDA 13.0, November 2026, where vectorised kernels move 3.0 TB/s.
    """
    specs = [*on_device(op.inputs), *on_device(op.outputs)]
    if len({(spec.shape, _placed(spec)) for spec in specs}) <= 1:
        return 0
    largest = specs[-1] if op.outputs else specs[0]
    wide = largest.shape
    for spec in specs:
        aligned = zip(reversed(spec.shape), reversed(wide), strict=False)
        if len(spec.shape) > len(wide) or any(mine not in (1, its) for mine, its in aligned):
            return 0  # No broadcast: a kernel of its own.
    return UNVECTORISED_BYTES * elements(largest)


def _placed(spec: TensorSpec) -> tuple[int, ...]:
    """Strides of the dimensions that have any; none: row by row."""
    if spec.strides is None:
        return ()
    pairs = zip(spec.shape, spec.strides, strict=True)
    placed = tuple(stride for length, stride in pairs if length != 1)
    dense = [length for length in spec.shape if length != 1]
    row_by_row = tuple(math.prod(dense[at + 1 :]) for at in range(len(dense)))
    return () if placed == row_by_row else placed


def _by_bytes(op: Op, rule: str, *, estimated: bool, least: int = 0) -> Lowered:
    read = moved(on_device(op.inputs))
    written = moved(op.outputs)
    if in_place(op) and not op.outputs:
        written = moved(on_device(op.inputs[:1]))
    if not read + written:
        return FREE
    if short_name(op) in _VIEW_GRADIENTS:
        written += read
    kind = "activation" if short_name(op) in _ACTIVATIONS else "elementwise"
    kernel = Streaming(short_name(op), kind, max(read + written, least))
    return Lowered((kernel,), rule, estimated)
