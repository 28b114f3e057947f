"""How a layer mixes tokens: norm, then attention, a scan or a delta rule, or several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainscout.simulators.predictor.question.layers import Mixer

from .adapters import column_input_bytes
from .attention import attention_parts
from .compressed_attention import compressed_parts
from .cross_attention import cross_parts
from .delta_net import delta_parts
from .ir import Streaming
from .part import Part, hidden_norm
from .selective_scan import mamba1_parts
from .shard import Shard
from .short_conv import short_conv_parts
from .state_space import mamba2_parts

_PARTS: Mapping[str, Callable[[Shard, Any], list[Part]]] = {
    "attention": attention_parts,
    "mamba2": mamba2_parts,
    "delta": delta_parts,
    "mamba1": mamba1_parts,
    "short_conv": short_conv_parts,
    "compressed": compressed_parts,
    "cross": cross_parts,
}


def mixer_parts(shard: Shard, mixer: Mixer) -> list[Part]:
    """The parts of one mixer, norm to output projection; those in parallel share the norm, and
    run one after another."""
    hidden = shard.model.hidden_size
    parts = [hidden_norm(shard, "attention_norm", column_input_bytes(shard, "qkv"))]
    parallel = len(mixer.parts)
    for name, part in mixer.parts.items():
        parts += _PARTS[name](shard, part)
    if parallel > 1:
        # Outputs are added up, and so are the gradients of what they share.
        moved = (parallel + 1) * shard.local_tokens * hidden * shard.element_bytes
        sums = Streaming("mixers_sum", "elementwise", moved)
        parts.append(Part((sums,), (Streaming("mixers_grad_sum", "elementwise", moved),)))
    return parts
