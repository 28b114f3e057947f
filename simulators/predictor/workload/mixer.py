"""How a layer mixes tokens: norm, then attention, a scan or a delta rule, or several of them."""

from __future__ import annotations

from dataclasses import fields

from trainscout.simulators.predictor.question.layers import Mixer
from trainscout.simulators.predictor.workload.adapters import column_input_bytes
from trainscout.simulators.predictor.workload.attention import attention_parts
from trainscout.simulators.predictor.workload.compressed_attention import compressed_parts
from trainscout.simulators.predictor.workload.delta_net import delta_parts
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.predictor.workload.part import Part, norm
from trainscout.simulators.predictor.workload.selective_scan import mamba1_parts
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.predictor.workload.short_conv import short_conv_parts
from trainscout.simulators.predictor.workload.state_space import mamba2_parts


def mixer_parts(shard: Shard, mixer: Mixer) -> list[Part]:
    """The parts of one mixer, norm to output projection; those in parallel share the norm, and
    run one after another."""
    hidden = shard.model.hidden_size
    parts = [
        norm(
            shard,
            "attention_norm",
            shard.local_tokens,
            hidden,
            keep_output=column_input_bytes(shard, "qkv"),
        )
    ]
    if mixer.attention is not None:
        parts += attention_parts(shard, mixer.attention)
    if mixer.mamba2 is not None:
        parts += mamba2_parts(shard, mixer.mamba2)
    if mixer.delta is not None:
        parts += delta_parts(shard, mixer.delta)
    if mixer.mamba1 is not None:
        parts += mamba1_parts(shard, mixer.mamba1)
    if mixer.short_conv is not None:
        parts += short_conv_parts(shard, mixer.short_conv)
    if mixer.compressed is not None:
        parts += compressed_parts(shard, mixer.compressed)
    parallel = sum(getattr(mixer, each.name) is not None for each in fields(mixer))
    if parallel > 1:
        # Outputs are added up, and so are the gradients of what they share.
        moved = (parallel + 1) * shard.local_tokens * hidden * shard.element_bytes
        sums = Streaming("mixers_sum", "elementwise", moved)
        parts.append(Part((sums,), (Streaming("mixers_grad_sum", "elementwise", moved),)))
    return parts
