"""Low-rank adapters beside linear layers: ``y = W x + (alpha / r) B A x`` with ``W`` frozen.

As Megatron-Bridge places them (``peft/utils.py: ParallelLinearAdapter``): both factors are sharded
over the tensor-parallel group. Beside a column-parallel layer A makes its share of the ``r``
columns from the gathered input, and they are gathered; beside a row-parallel layer A's products
are summed, B makes its share of the outputs, and they are gathered (under sequence parallelism
each rank then takes its tokens). Adapters compute in 16 bits, whatever their layer does; PEFT's
that are kept in fp32 under autocast read a copy of their own (0.21: the input is cast to fp32,
dropped there, and cast back), and casts of their factors; without it they compute in fp32, in
which what they make is scaled and added, and the sum is cast back.

DoRA (Liu et al. 2024, eq. 5) is ``y = m / |W + s B A| (W x + s B A x)`` with a magnitude ``m`` and
a norm a row of ``W``, taken anew in every pass and without gradients: on one rank PEFT 0.21's, on
several Megatron-Bridge's (``peft/dora_layers.py``), of each rank's share of ``W``, for which the
factor that is cut otherwise is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainscout.simulators.predictor.workload.ir import (
    Collective,
    Gemm,
    GroupedGemm,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.shard import Shard

from .frozen_weights import unpacking

# Layers by what Megatron calls them.
_TARGET = {
    **dict.fromkeys(("qkv", "q_down", "q_up", "kv_down", "kv_up"), "linear_qkv"),
    **dict.fromkeys(("cross_q", "cross_kv"), "linear_qkv"),
    **dict.fromkeys(("ssm_in", "delta_in", "conv_in"), "linear_qkv"),
    **dict.fromkeys(("attention_output", "ssm_out", "delta_out", "conv_out"), "linear_proj"),
    **dict.fromkeys(("fc1", "shared_fc1", "expert_fc1"), "linear_fc1"),
    **dict.fromkeys(("fc2", "shared_fc2", "expert_fc2"), "linear_fc2"),
}
_ROWS = ("linear_proj", "linear_fc2")
"""Row-parallel ones: each rank has all outputs."""
_MARK, _NORM, _MULTIPLIED = "_lora_", "_dora_", "multiplied"
_FOLDED = "_folded"


def is_adapted(shard: Shard, name: str) -> bool:
    """Whether linear layer ``name`` has an adapter."""
    return shard.lora is not None and _TARGET.get(name) in shard.lora.targets


def input_bytes(shard: Shard, name: str) -> float:
    """Bytes per element that linear layer ``name`` keeps of its input: an adapter needs it in 16
    bits (as dropped, with the mask), a frozen weight not at all."""
    if is_adapted(shard, name):
        assert shard.lora is not None
        size = 4 if shard.multiplies_adapters_wide else shard.element_bytes
        return size + bool(shard.lora.dropout)
    return shard.of_product(name).linear_input_bytes if shard.trains else 0


def column_input_bytes(shard: Shard, name: str) -> float:
    """The same of a column-parallel layer, for each element of this rank's share; adapters keep
    what was gathered, and each product of its own the copy that was cast for it, or dropped."""
    adapted = is_adapted(shard, name)
    copies = shard.tp if (shard.sp and adapted) or shard.keeps_gathered else 1
    if shard.separate_projections and (shard.casts_apart or (adapted and _copies_input(shard))):
        joined = {"fc1": 1 + shard.model.gated_mlp, "qkv": 1 if shard.model.mla else 3}
        copies *= joined.get(name, 1)
    return input_bytes(shard, name) * copies


def copies_attention_output(shard: Shard) -> bool:
    """Whether attention keeps its output beside what the output projection keeps: the ring puts
    it together in a layout of its own, a quantised projection keeps its quantised input, a frozen
    one nothing, and an adapter may copy it.
    """
    if is_adapted(shard, "attention_output"):
        return shard.cp > 1 or _copies_input(shard)
    return shard.cp > 1 or input_bytes(shard, "attention_output") < shard.element_bytes


def _copies_input(shard: Shard) -> bool:
    """Whether adapters keep a copy of what they read that is their own."""
    return shard.fp32_adapters or (shard.lora is not None and shard.lora.dropout > 0)


def adapter(
    shard: Shard, name: str, tokens: int, inputs: int, outputs: int, parallel: str | None
) -> tuple[list[Op], list[Op]]:
    """Forward and backward operations of one adapter; sizes are this rank's, as in ``linear``."""
    assert shard.lora is not None
    rank, size = shard.lora.rank, shard.element_bytes
    dtype = "fp32" if shard.multiplies_adapters_wide else shard.dtype
    sharded = shard.tp if parallel else 1
    narrow = rank // sharded if parallel == "column" else rank
    made = outputs // sharded if parallel == "row" else outputs
    own = f"{name}{_MARK}"

    def exchange(what: str, kind: str, width: int) -> list[Op]:
        moved = tokens * width * size
        return [Collective(f"{own}{what}", kind, moved, "tp", dtype)] if sharded > 1 else []

    casts = _casts(shard, own, tokens * inputs, narrow * inputs + made * rank)
    forward = [*casts, *_dropout(shard, f"{own}dropout_fwd", tokens * inputs)]
    forward.append(Gemm(f"{own}in_fwd", tokens, narrow, inputs, dtype))
    backward: list[Op] = []
    if parallel == "row":
        forward += exchange("sum", "all_reduce", rank)
        backward += exchange("tokens", "all_gather", outputs) if shard.sp else []
    else:
        forward += exchange("gather", "all_gather", rank)
    # Scaled, then added to what the layer made, of a row-parallel one a rank's own tokens under
    # sequence parallelism; the gradients of the shared input are added up.
    whole = (tokens // sharded if parallel == "row" and shard.sp else tokens) * outputs
    wide = shard.multiplies_adapters_wide
    ahead, back = (20 + 2 * size, 16 + 2 * size) if wide else (5 * size, 2 * size)
    added: list[Op] = [Streaming(f"{own}add", "elementwise", ahead * whole, launches=2 + wide)]
    scaled: list[Op] = [
        Streaming(f"{own}scale_bwd", "elementwise", back * whole, launches=1 + 2 * wide)
    ]
    if shard.lora.dora:
        if shard.dora_of_factors:
            across = outputs if parallel == "row" else inputs
            factor = [Collective(f"{own}factor", "all_gather", rank * across * size, "tp", dtype)]
            forward += factor * (sharded > 1)
        forward += _norm(shard, name, inputs, outputs)
        added, scaled = _by_magnitude(shard, name, tokens, inputs, outputs, whole)
    backward += scaled
    forward.append(Gemm(f"{own}out_fwd", tokens, made, rank, dtype))
    backward += [
        Gemm(f"{own}out_dgrad", tokens, rank, made, dtype, layout="NN"),
        _gradient(shard, f"{own}out", (made, rank, tokens), dtype),
    ]
    # The second factor is column-parallel on either side.
    backward += exchange("sum_bwd", "all_reduce", rank)
    if parallel == "row":
        forward += exchange("outputs", "all_gather", outputs)
    forward += added
    backward += [
        Gemm(f"{own}in_dgrad", tokens, inputs, narrow, dtype, layout="NN"),
        _gradient(shard, f"{own}in", (narrow, inputs, tokens), dtype),
        *_dropout(shard, f"{own}dropout_bwd", tokens * inputs),
        *casts,
        Streaming(f"{own}grad_add", "elementwise", 3 * tokens * inputs * size),
    ]
    if parallel == "column" and not shard.sp:
        backward += exchange("grad", "all_reduce", inputs)
    return forward, backward


def _norm(shard: Shard, name: str, inputs: int, outputs: int) -> list[Op]:
    """The norms of rows: a unit matrix through both factors is ``B A``, which is scaled, added to
    the weight and normed, in fp32 where magnitudes are."""
    assert shard.lora is not None
    own, rank, dtype = f"{name}{_NORM}", shard.lora.rank, shard.dtype
    size, wide, weights = shard.element_bytes, shard.magnitude_bytes, inputs * outputs
    casts = (wide + size) * (wide > size)
    if shard.dora_of_factors:
        # The scaled product is added to the weight, and the sum normed.
        return [
            Gemm(f"{own}{_MULTIPLIED}", inputs, outputs, rank, dtype),
            Streaming(f"{own}rows", "elementwise", 4 * size * weights, launches=4),
        ]
    unit, moved = inputs**2 * (wide + casts), weights * (6 * wide + 2 * casts)
    return [
        *unpacking(shard, name, 0, inputs, outputs)[1],
        Streaming(f"{own}unit", "elementwise", unit, launches=2 + (casts > 0)),
        Gemm(f"{own}in", inputs, rank, inputs, dtype),
        Gemm(f"{own}{_MULTIPLIED}", inputs, outputs, rank, dtype),
        Streaming(f"{own}rows", "elementwise", moved, launches=6 + 4 * (casts > 0)),
    ]


def _by_magnitude(
    shard: Shard, name: str, tokens: int, inputs: int, outputs: int, made: int
) -> tuple[list[Op], list[Op]]:
    """What scales the ``made`` outputs and adds them up, and its gradients'. Beside dropout the
    weight is multiplied by what was left of the input once more."""
    assert shard.lora is not None
    own, dtype = f"{name}{_NORM}", shard.dtype
    size, wide = shard.element_bytes, shard.magnitude_bytes
    casts, drops = (wide + size) * (wide > size), bool(shard.lora.dropout)
    forward = made * (9 * wide + 3 * size + casts)
    backward = made * (12 * wide + 2 * size + 4 * casts + 3 * size * (not drops))
    if shard.dora_of_factors:
        # The adapter is scaled and added, the sum scaled by rows; a correction, or 0, is added.
        forward, backward = made * size * (9 + 3 * drops), made * size * (8 + 6 * drops)
    added: list[Op] = [Streaming(f"{own}add", "elementwise", forward, launches=5 + (casts > 0))]
    scaled: list[Op] = [
        Streaming(f"{own}add_bwd", "elementwise", backward, launches=10 + 4 * (casts > 0))
    ]
    if drops:
        cast = [Streaming(f"{own}weight_cast", "cast", inputs * outputs * casts)] * (casts > 0)
        added = [*cast, Gemm(f"{own}again_fwd", tokens, outputs, inputs, dtype), *added]
        scaled += [
            Gemm(f"{own}again_dgrad", tokens, inputs, outputs, dtype, layout="NN"),
            Streaming(f"{own}again_add", "elementwise", 3 * tokens * inputs * size),
        ]
    return added, scaled


def norms(ops: Sequence[Op]) -> list[Gemm]:
    """The products of ``inputs`` by ``outputs`` whose rows DoRA norms, among operations."""
    made = f"{_NORM}{_MULTIPLIED}"
    return [op for op in ops if isinstance(op, Gemm) and op.name.endswith(made)]


def norm_bytes(shard: Shard, ops: Sequence[Op]) -> int:
    """Most bytes that are held while the norms of one layer are taken."""
    size, wide = shard.element_bytes, shard.magnitude_bytes
    if shard.dora_of_factors:
        return max((2 * size * op.m * op.n for op in norms(ops)), default=0)
    held = wide * (3 + (wide > size))
    return max((op.m * (op.m * size + op.n * held) for op in norms(ops)), default=0)


def _casts(shard: Shard, own: str, elements: int, weights: int) -> list[Op]:
    """Of an adapter's input and its factors, or of their gradients."""
    reads_wide = shard.fp32_outputs and not own.startswith("attention_output")
    inputs = 2 if shard.fp32_adapters else int(reads_wide)
    if not inputs:
        return []
    moved = 4 + shard.element_bytes
    if shard.multiplies_adapters_wide:
        return [Streaming(f"{own}cast", "cast", moved * elements)]
    return [
        Streaming(f"{own}cast", "cast", inputs * moved * elements, launches=inputs),
        Streaming(f"{own}weight_cast", "cast", moved * weights, launches=2),
    ]


def _dropout(shard: Shard, name: str, elements: int) -> list[Op]:
    """Of an adapter's input, or of its gradient, with a mask of a byte an element."""
    assert shard.lora is not None
    moved = elements * (2 * (4 if shard.fp32_adapters else shard.element_bytes) + 1)
    return [Streaming(name, "dropout", moved)] if shard.lora.dropout else []


def _gradient(shard: Shard, name: str, sizes: tuple[int, int, int], dtype: str) -> Gemm:
    sums = shard.fused_sum_bytes
    return Gemm(f"{name}_wgrad", *sizes, dtype, layout="NT", accumulate=sums)


def expert_product(
    shard: Shard, name: str, sizes: tuple[int, int, int, int], dtype: str, layout: str
) -> GroupedGemm:
    """A product of all experts of a rank, of ``sizes`` as ``GroupedGemm`` has them."""
    accumulate = shard.fused_sum_bytes if layout == "NT" else 0
    return GroupedGemm(name, *sizes, dtype, layout, accumulate, one_kernel=shard.fused_experts)


def expert_adapter(
    shard: Shard, name: str, groups: int, rows: int, outputs: int, inputs: int
) -> tuple[list[Op], list[Op]]:
    """Of one linear layer of all experts of a rank, an adapter each, or one for all their rows;
    under expert tensor parallelism each rank has its share of the sharded dimension."""
    assert shard.lora is not None
    if shard.stacks_experts:
        return _stack_adapter(shard, name, groups, rows, outputs, inputs)
    if shard.shares_expert_adapters:
        groups, rows = 1, groups * rows
    rank, size, own = shard.lora.rank, shard.element_bytes, f"{name}{_MARK}"
    total = groups * rows
    casts = _casts(shard, own, total * inputs, groups * rank * (inputs + outputs))

    def product(what: str, n: int, k: int, layout: str) -> GroupedGemm:
        return expert_product(shard, f"{own}{what}", (groups, rows, n, k), shard.dtype, layout)

    return (
        [
            *casts,
            *_dropout(shard, f"{own}dropout_fwd", total * inputs),
            product("in_fwd", rank, inputs, "TN"),
            product("out_fwd", outputs, rank, "TN"),
            Streaming(f"{own}add", "elementwise", 5 * total * outputs * size, launches=2),
        ],
        [
            Streaming(f"{own}scale_bwd", "elementwise", 2 * total * outputs * size),
            product("out_dgrad", rank, outputs, "NN"),
            product("out_wgrad", outputs, rank, "NT"),
            product("in_dgrad", inputs, rank, "NN"),
            product("in_wgrad", rank, inputs, "NT"),
            *_dropout(shard, f"{own}dropout_bwd", total * inputs),
            *casts,
            Streaming(f"{own}grad_add", "elementwise", 3 * total * inputs * size),
        ],
    )


def _stack_adapter(
    shard: Shard, name: str, groups: int, rows: int, outputs: int, inputs: int
) -> tuple[list[Op], list[Op]]:
    """Of one linear layer of a rank's experts whose weights are stacked: ``W + s B A`` of all of
    them, which are multiplied instead, and their gradient, of which the factors' are made.

    PEFT 0.21 (``ParamWrapper``): one ``baddbmm`` copies ``W`` and adds to it, twice in a forward
    pass, as registering a parametrization tries it first. What it has of a gate and its other half
    is one adapter of both ranks.
    """
    assert shard.lora is not None
    rank, dtype, size = shard.lora.rank, shard.dtype, shard.element_bytes
    rank *= 1 + (name == "expert_fc1" and shard.model.gated_mlp)
    own = f"{name}{_MARK}"
    casts = _casts(shard, own, 0, groups * rank * (inputs + outputs))[1:]

    def add(what: str) -> list[Op]:
        copied = Streaming(f"{own}copy", "elementwise", 2 * groups * outputs * inputs * size)
        sizes = outputs, inputs, rank
        return [copied, Gemm(f"{name}{what}", *sizes, dtype, groups, "NN", accumulate=size)]

    whole = expert_product(
        shard, f"{own}stack_wgrad", (groups, rows, outputs, inputs), dtype, "NT"
    )
    return (
        [*casts, *add("_tried"), *add(_FOLDED)],
        [
            whole,
            Gemm(f"{own}out_wgrad", outputs, rank, inputs, dtype, groups, "TN"),
            Gemm(f"{own}in_wgrad", rank, inputs, outputs, dtype, groups, "NT"),
            *casts,
        ],
    )


def folds(ops: Sequence[Op]) -> list[Gemm]:
    """The products among operations that add adapters to stacked weights, once each."""
    return [op for op in ops if isinstance(op, Gemm) and op.name.endswith(_FOLDED)]


def folded_bytes(shard: Shard, ops: Sequence[Op]) -> list[int]:
    """What each linear layer of stacked experts keeps of its sum until its backward pass."""
    return [op.batch * op.m * op.n * shard.element_bytes for op in folds(ops)]


def adapter_products(ops: tuple[Op, ...]) -> list[Gemm | GroupedGemm]:
    """Those of adapters among a layer's operations."""
    return [op for op in ops if isinstance(op, Gemm | GroupedGemm) and _MARK in op.name]


def latent_bytes(shard: Shard, ops: tuple[Op, ...]) -> int:
    """Bytes of what first factors made in a forward pass, which the second's gradients need; of
    DoRA what the layer and its adapter made, for magnitudes', or their sum."""
    assert shard.lora is not None
    kept, tensors = 0, 1 if shard.dora_of_factors else 2
    for op in adapter_products(ops):
        if op.name.endswith(f"{_MARK}out_fwd"):
            rows = op.m if isinstance(op, Gemm) else op.groups * op.m_per_group
            made = op.n if isinstance(op, Gemm) and shard.lora.dora else 0
            if not shard.sp and _TARGET.get(op.name.partition(_MARK)[0]) in _ROWS:
                made *= shard.tp
            kept += rows * (shard.lora.rank + tensors * made)
    return kept * shard.element_bytes
