"""The dense MLP."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.elementwise import (
    activation_ops,
    clamped_inputs,
    writes_gelu,
)
from trainscout.simulators.predictor.workload.ir import Alloc
from trainscout.simulators.predictor.workload.linear_layers.adapters import input_bytes
from trainscout.simulators.predictor.workload.linear_layers.linear import bias_grad, linear
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard


def mlp_part(shard: Shard, width: int, prefix: str = "") -> Part:
    """A column-parallel then row-parallel MLP of inner ``width`` (before sharding).

    Saved: the first layer's output, the activation's output. Its input is kept by the norm
    before it.
    """
    model, size = shard.model, shard.output_bytes
    local = width // shard.tp
    fc1_width = local * (2 if model.gated_mlp else 1)
    fc1_forward, fc1_backward = linear(
        shard,
        f"{prefix}fc1",
        shard.tokens,
        model.hidden_size,
        fc1_width,
        parallel="column",
        joined=(local, local) if model.gated_mlp else (),
    )
    fc2_forward, fc2_backward = linear(
        shard, f"{prefix}fc2", shard.tokens, local, model.hidden_size, parallel="row"
    )
    act_forward, act_backward = activation_ops(shard, f"{prefix}activation", shard.tokens * local)
    if model.linear_bias:
        act_backward += bias_grad(shard, f"{prefix}fc1", shard.tokens, fc1_width)
        fc2_backward = (
            bias_grad(shard, f"{prefix}fc2", shard.local_tokens, model.hidden_size) + fc2_backward
        )
    inner = shard.tokens * local * size
    outer = shard.tokens * model.hidden_size * size
    residual = shard.local_tokens * model.hidden_size * size
    # Each gradient appears while its successor's input is still held: of the activation's output
    # (from the gathered output gradient), then of its input, then of the layer's.
    gathered = outer if shard.sp else 0
    fc1_output = shard.tokens * fc1_width * size
    chain = max(gathered + inner, fc1_output, outer + gathered - inner)
    # What was, or will be, cast.
    cast = fc1_output if shard.stores_fp8_activations else 0
    saved = [
        Alloc(f"{prefix}fc1_output", cast // size or fc1_output),
        Alloc(
            f"{prefix}activation", int(shard.tokens * local * input_bytes(shard, f"{prefix}fc2"))
        ),
    ]
    saved += clamped_inputs(shard, shard.tokens * fc1_width)
    if model.gated_mlp and shard.fusion == "eager":
        # The activated gate is a factor of a product written on its own.
        saved.append(Alloc(f"{prefix}gate", inner))
    weight = local * model.hidden_size * (4 if shard.autocast else shard.element_bytes)
    if 0 < shard.cut_at_bytes <= weight and model.gated_mlp:
        # Cut behind each weight, a compiled layer keeps the activated gate and its input besides:
        # PyTorch 2.13's own graphs of a Llama layer under DDP save 20,480 bytes a token more with
        # buckets of 25 and 50 MiB than with 100 to 500, at weights of 64 MiB.
        saved.append(Alloc(f"{prefix}cut", inner + residual))
    if writes_gelu(shard):
        # Of x: half, tanh, and one more than that; in fp32 all but the first, and x besides.
        copies = 6 if shard.autocast else 3
        saved.append(Alloc(f"{prefix}gelu", copies * inner))
    return Part(
        (*fc1_forward, *act_forward, *fc2_forward),
        (*fc2_backward, *act_backward, *fc1_backward),
        tuple(saved),
        forward_peak_bytes=max(2 * outer, cast),
        backward_peak_bytes=chain + cast + 2 * residual,
        module="shared_experts" if prefix else "mlp",
    )
