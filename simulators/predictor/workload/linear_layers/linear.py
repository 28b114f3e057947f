"""Linear layers, replicated or sharded over the tensor-parallel group, with their traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from trainscout.simulators.predictor.workload.ir import Collective, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.shard import Shard

from .adapters import adapter, is_adapted
from .frozen_weights import ENDS, unpacking
from .quantise import cast_weights, quantise, transpose


def linear(
    shard: Shard,
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    parallel: Literal["column", "row"] | None = None,
    gathered: int | None = None,
    joined: tuple[int, ...] = (),
) -> tuple[list[Op], list[Op]]:
    """Forward and backward operations of ``y[tokens, outputs] = x[tokens, inputs] W^T``.

    ``inputs`` and ``outputs`` are this rank's; ``parallel`` says which of the two is sharded:
    ``column`` the outputs, ``row`` the inputs, None neither. Under sequence parallelism a
    column-parallel layer gathers ``gathered`` elements per token (default ``inputs``) before and
    a row-parallel one scatters its sum after; without, the input gradient and the output are
    summed in full. As in Megatron-LM, the backward of a column-parallel layer gathers its input
    beside the dgrad GEMM and reduces the input gradient beside the wgrad GEMM, while a
    row-parallel layer must gather the output gradient first. With ``tp_comm_overlap``
    (userbuffers) communication is cut in ``tp`` pieces that run beside the pieces of the GEMM,
    so only one piece stays exposed. Software that keeps the gathered input never gathers it again;
    where the sequence is not the outermost dimension, what is gathered is put in order after and
    what is scattered before. ``joined`` are the outputs of projections that share the input: those
    that software keeps apart are products of their own, whose input gradients are added up, after
    each was reduced where ``inputs_apart``. Under autocast column-parallel layers read what norms
    made in fp32.

    A frozen weight has no gradient: nothing is gathered again for one, nor laid out for it, and
    no product hides the reduction of the input gradient. One in fewer bits is unpacked for either
    product (``frozen_weights``). Adapters run beside the layer.

    In 8 and 4 bits, what is gathered over tokens is quantised first and travels so (Transformer
    Engine's quantised all-gather); sums travel in 16 bits.
    """
    shard = shard.of_product(name)
    dtype, size = shard.linear_dtype, shard.element_bytes
    local = tokens // shard.tp
    column, row = (shard.sp and parallel == each for each in ("column", "row"))
    forward = quantise(shard, name, (local if column else tokens) * inputs, gathered=column)
    backward = quantise(shard, f"{name}_grad", (local if row else tokens) * outputs, gathered=row)
    if shard.trains and column:
        backward += transpose(shard, f"{name}_again", tokens * inputs)
    elif shard.trains and row:
        backward += transpose(shard, f"{name}_grad", tokens * outputs)
    apart = joined if shard.separate_projections and len(joined) > 1 else ()
    products = len(apart) or 1
    tensors = products * (2 if _has_bias(shard, name) else 1)
    before, before_gradient = unpacking(shard, name, tokens, inputs, outputs, products)
    widened = _widened(shard, name, tokens, inputs, outputs, products)
    before, before_gradient = [*before, *widened], [*before_gradient, *widened]
    forward = before + cast_weights(shard, name, inputs * outputs, tensors) + forward
    backward = before_gradient + backward
    # Asynchronous tensor parallelism multiplies what came from each rank on its own.
    asynchronous = bool(parallel) and shard.batch_first and shard.tp_comm_overlap
    cuts = shard.tp if asynchronous else 1
    # It scatters beside the product that made the sum (``fuse_matmul_reduce_scatter`` in
    # ``micro_pipeline_tp.py``), and not where several products were added up.
    unfused = asynchronous and parallel == "column" and bool(apart)
    grad_cuts = 1 if unfused else cuts
    product: list[Op] = []
    dgrad: list[Op] = []
    wgrad: list[Op] = []
    for index, width in enumerate(apart or (outputs,)):
        own = f"{name}_{index}" if apart else name
        product += [Gemm(f"{own}_fwd", tokens // cuts, width, inputs, dtype)] * cuts
        rows = tokens // grad_cuts
        dgrad += [Gemm(f"{own}_dgrad", rows, inputs, width, dtype, layout="NN")] * grad_cuts
        if shard.trains:
            shape = (f"{own}_wgrad", width, inputs, tokens)
            sums = shard.fused_sum_bytes
            wgrad.append(Gemm(*shape, dtype, layout="NT", accumulate=sums))
    reductions = len(apart) if apart and shard.inputs_apart else 1
    added: list[Op] = []
    casts = shard.casts_apart and parallel == "column"
    if casts:
        moved = products * tokens * inputs * (shard.stream_bytes + size)
        forward.append(Streaming(f"{name}_input_cast", "cast", moved, products))
        added.append(Streaming(f"{name}_input_grad_cast", "cast", moved, products))
    if apart:
        rows = local if reductions > 1 and column else tokens
        moved = rows * inputs * (shard.stream_bytes if casts else size)
        # Autograd adds two at a time.
        sums, read = (products - 1, 3) if shard.fusion == "eager" else (1, products + 1)
        added.append(Streaming(f"{name}_grad_sum", "elementwise", sums * read * moved, sums))

    def exchange(what: str, kind: str, width: int, overlaps: int = 0) -> Collective:
        gathers = kind == "all_gather"
        element, type_ = (shard.linear_input_bytes, dtype) if gathers else (size, shard.dtype)
        bytes_ = int(tokens * width * element)
        in_product = shard.tp_comm_overlap
        return Collective(f"{name}_{what}", kind, bytes_, "tp", type_, overlaps, 0, in_product)

    if column:
        each = gathered or inputs
        gathers = 1 if shard.fusion == "compiled" else reductions
        gather = _overlapping_gemm(shard, exchange("gather", "all_gather", each), len(product))
        forward += gather * gathers + product
        overlapped = shard.overlap_tp_gradients or shard.tp_comm_overlap
        if shard.trains and not shard.keeps_gathered:
            backward += _ordered(
                shard, exchange("gather_again", "all_gather", each, overlapped * len(dgrad))
            )
        hidden = 0 if unfused else overlapped * len(wgrad)
        scatter = exchange("gather_grad", "reduce_scatter", each, hidden)
        scattered = (_reordered(scatter) if unfused else _ordered(shard, scatter)) * reductions
        summed = [] if unfused else _summed(shard, scatter)
        backward += [*dgrad, *added, *scattered, *wgrad, *summed]
    elif parallel == "column" and shard.tp > 1:
        forward += product
        backward += dgrad + added
        if shard.overlap_tp_gradients and reductions == 1:
            backward += [exchange("grad", "all_reduce", inputs, len(wgrad)), *wgrad]
        else:
            backward += [*wgrad, *[exchange("grad", "all_reduce", inputs)] * reductions]
    elif row:
        scatter = exchange("reduce", "reduce_scatter", outputs)
        pieces = _overlapping_gemm(shard, scatter, len(product))
        forward += pieces + product if shard.tp_comm_overlap else product + pieces
        forward += _summed(shard, scatter)
        # The gradient of a reduce-scatter is an all-gather of the same size.
        backward += _overlapping_gemm(
            shard, exchange("reduce_grad", "all_gather", outputs), len(dgrad)
        )
        backward += dgrad + wgrad
    else:
        forward += product
        if parallel == "row" and shard.tp > 1:
            forward.append(exchange("reduce", "all_reduce", outputs))
        backward += dgrad + added + wgrad
    if shard.trains:
        backward += separate_accumulation(shard, name, outputs * inputs, tensors)
    if is_adapted(shard, name):
        for index, width in enumerate(apart or (outputs,)):
            own = f"{name}_{index}" if apart else name
            ahead, back = adapter(shard, own, tokens, inputs, width, parallel)
            forward += ahead
            backward += back
    return forward, backward


def _widened(
    shard: Shard, name: str, tokens: int, inputs: int, outputs: int, products: int
) -> list[Op]:
    """Casts of what products make to fp32 (``Job.fp32_outputs``), or of its gradient back, and of
    what an MLP's second layer reads; attention reads and makes 16 bits."""
    if not shard.fp32_outputs or name in ENDS or name == "attention_output":
        return []
    both = name.endswith("fc2")
    moved = (4 + shard.element_bytes) * tokens * (outputs + inputs * both)
    return [Streaming(f"{name}_output_cast", "cast", moved, products + both)]


def _has_bias(shard: Shard, name: str) -> bool:
    """Whether a layer's linear layer has a bias beside its weight."""
    return (name == "qkv" and shard.model.qkv_bias) or (
        name != "logits" and shard.model.linear_bias
    )


def separate_accumulation(shard: Shard, name: str, elements: int, tensors: int = 1) -> list[Op]:
    """Adding a 16-bit weight gradient to the main gradient where the GEMM does not; that of fp32
    weights is cast first."""
    if shard.fused_wgrad:
        return []
    cast: list[Op] = []
    if shard.autocast:
        moved = (shard.element_bytes + 4) * elements
        cast = [Streaming(f"{name}_weight_grad_cast", "cast", moved, tensors)]
    return cast + accumulation(shard, name, elements)


def accumulation(shard: Shard, name: str, elements: int, launches: int = 1) -> list[Op]:
    """Reading a gradient, and the main gradient, which is written."""
    if not shard.accumulates:
        return []
    own = 4 if shard.autocast else shard.element_bytes
    main = 4 if shard.accumulate_grads_fp32 else own
    moved = elements * (own + 2 * main)
    return [Streaming(f"{name}_accumulate", "elementwise", moved, launches)]


def _overlapping_gemm(shard: Shard, op: Collective, products: int) -> list[Op]:
    if not shard.tp_comm_overlap:
        return _ordered(shard, op)
    piece = op.bytes // shard.tp
    return [
        replace(op, bytes=piece, overlaps=0),
        replace(op, bytes=op.bytes - piece, overlaps=products),
    ]


def _ordered(shard: Shard, op: Collective) -> list[Op]:
    """A gather or scatter over tokens with the copy that puts them in order, if one is needed."""
    return [op] if not shard.batch_first or shard.tp_comm_overlap else _reordered(op)


def _reordered(op: Collective) -> list[Op]:
    """A gather or scatter that nothing runs beside, and the copy that puts tokens in order: ranks'
    shares are slices of every sequence, collectives deal in whole blocks."""
    copy = Streaming(f"{op.name}_order", "memcpy", 2 * op.bytes)
    return [replace(op, overlaps=0), copy] if op.kind == "all_gather" else [copy, op]


def _summed(shard: Shard, op: Collective) -> list[Op]:
    """PyTorch's asynchronous tensor parallelism sends every rank its piece of the product as it
    is, and adds up what arrived (``_fused_matmul_reduce_scatter``)."""
    if not shard.batch_first or not shard.tp_comm_overlap:
        return []
    return [Streaming(f"{op.name}_sum", "reduce", op.bytes + op.bytes // shard.tp)]


def bias_grad(shard: Shard, name: str, tokens: int, width: int) -> list[Op]:
    """Summing a bias gradient over tokens reads the output gradient once. What is summed is added
    to the main gradient by a kernel of its own, in a hook of Megatron's DDP or by autograd."""
    if not shard.trains:
        return []
    summed = Streaming(f"{name}_bias_grad", "reduce", tokens * width * shard.element_bytes)
    return [summed, *accumulation(shard, f"{name}_bias", width)]


def exchange(shard: Shard, name: str, size: int) -> list[Op]:
    """``size`` bytes packed by destination, exchanged over ``cp``, and put in order after it."""
    return [
        Streaming(f"{name}_pack", "memcpy", 2 * size),
        Collective(name, "all_to_all", size, "cp", shard.dtype),
        Streaming(f"{name}_unpack", "memcpy", 2 * size),
    ]
