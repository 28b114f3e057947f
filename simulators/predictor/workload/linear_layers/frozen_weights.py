"""Frozen weights in 8 and 4 bits beside adapters (Dettmers et al. 2023, QLoRA), as bitsandbytes
keeps them.

A weight of a layer is made 16-bit for every product that reads it and let go behind it: forward,
again where the layer is recomputed, and for the input's gradient (``MatMul4Bit``, 0.50); of four
bits fp32 in a job of that precision. Four bits (``nf4``; FP4 lies the same way) have an fp32 scale
for 64 weights; in ``nf4_double`` these are 8-bit ones under an fp32 scale for 256, put together in
fp32 first. Eight bits (LLM.int8(), ``MatMul8bitLt``) have a scale for a row, left out here, and
are multiplied forward by inputs quantised in fp16: a product priced as one in 16 bits, whose sums
of 32 bits are scaled behind it. Scales are no parameters: FSDP and ZeRO 3 shard and gather packed
weights alone. Embeddings, norms, routers, towers and the head stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainscout.simulators.predictor.question.tuning import PACKED
from trainscout.simulators.predictor.workload.ir import Op, Streaming
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard

_UNPACKED = "_dequantise"
# Outside the layers, and in 16 bits.
ENDS = ("logits", "head_transform", "layer_inputs", "mtp_projection")


def unpacking(
    shard: Shard, name: str, tokens: int, inputs: int, outputs: int, products: int = 1
) -> tuple[list[Op], list[Op]]:
    """What so many products of one input, with weights ``(outputs, inputs)`` together, need before
    them, forward and backward."""
    kept = PACKED.get(shard.frozen_weights)
    stacked = shard.stacks_experts and name.startswith("expert_")
    if kept is None or name in ENDS or stacked:
        return [], []
    moved = int(_moved(shard) * inputs * outputs)
    unpacked: list[Op] = [Streaming(f"{name}{_UNPACKED}", "cast", moved, products * kept.launches)]
    if shard.frozen_weights != "int8":
        return unpacked, unpacked
    # Inputs in bf16 are cast to fp16 first; sums are read in 32 bits.
    read = 3 + (4 if shard.dtype == "bf16" else 0)
    quantised = products * read * tokens * inputs
    scaled = (4 + shard.element_bytes) * tokens * outputs
    forward: list[Op] = [
        Streaming(f"{name}_input_quantise", "cast", quantised, products * (1 + (read > 3))),
        Streaming(f"{name}_output_scale", "cast", scaled, products),
    ]
    return forward, unpacked


def with_unpacked(shard: Shard, parts: Sequence[Part]) -> list[Part]:
    """Parts of a layer that hold, beside what they hold otherwise, the largest matrix that was
    made 16-bit for a product of theirs."""
    return [
        replace(
            part,
            forward_peak_bytes=part.forward_peak_bytes + _largest(shard, part.forward),
            backward_peak_bytes=part.backward_peak_bytes + _largest(shard, part.backward),
        )
        for part in parts
    ]


def _largest(shard: Shard, ops: Sequence[Op]) -> int:
    made = (
        op.bytes * PACKED[shard.frozen_weights].launches // op.launches
        for op in ops
        if isinstance(op, Streaming) and op.name.endswith(_UNPACKED)
    )
    return int(max(made, default=0) * shard.element_bytes / _moved(shard))


def _moved(shard: Shard) -> float:
    """Bytes that making one weight reads and writes."""
    return PACKED[shard.frozen_weights].moved + shard.element_bytes - 2


def gathered_bytes(shard: Shard, parameters: LocalParameters) -> int:
    """Of ``parameters`` gathered from their shards."""
    size, kept = shard.element_bytes, PACKED.get(shard.frozen_weights)
    whole = size * parameters.held.total
    if kept is None or parameters.quantised is None:
        return whole
    return whole - int(parameters.quantised.held.total * (size - kept.packed))
