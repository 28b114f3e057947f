"""Runs single modules of the emulated packages on a virtual A100: run as a process.

``python modules.py DIRECTORY`` writes a trace for each case (two forward and backward passes) and
``figures.json`` with what it refused and what it read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation import ListSink, emulate
from trainscout.simulators.virtual_cluster.emulation.vendor import install_vendor
from trainscout.simulators.virtual_cluster.emulation.vendor.packages import find_version
from trainscout.simulators.virtual_cluster.traces.events import Header, Trace
from trainscout.simulators.virtual_cluster.traces.files import write_trace

WIDTH, TOKENS = 256, 128
TE = find_version("transformer_engine", "transformer-engine") is not None


def cases() -> dict[str, Callable[[], Any]]:
    """Name -> makes a module or function that takes ``[tokens, 1, width]``."""
    import apex
    import apex.transformer.functional as positioned
    import causal_conv1d
    import causal_conv1d_cuda
    import fast_hadamard_transform
    import flash_attn
    import grouped_gemm
    import selective_scan_cuda
    import torch
    import xformers.ops
    from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward
    from flash_attn.flash_attn_interface import _wrapped_flash_attn_forward as wrapped
    from flash_attn.layers.rotary import RotaryEmbedding
    from flash_attn.losses.cross_entropy import CrossEntropyLoss
    from flash_attn.ops.triton.layer_norm import layer_norm_fn
    from mamba_ssm.ops.triton.layer_norm import _layer_norm_fwd
    from mamba_ssm.ops.triton.ssd_combined import _mamba_chunk_scan_combined_bwd as scan_backward
    from mamba_ssm.ops.triton.ssd_combined import _mamba_chunk_scan_combined_fwd as scan_forward
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    assert wrapped is _flash_attn_forward  # From 2.7 on, a registered operation.
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}

    def flash(inputs: Any) -> Any:
        query = inputs.view(2, TOKENS // 2, 4, WIDTH // 4)
        key = query[:, :, :2].contiguous()
        return flash_attn.flash_attn_func(query, key, key, causal=True)

    def turned(inputs: Any) -> Any:
        angles = torch.zeros(TOKENS, 1, 1, WIDTH // 4, device="cuda")
        heads = positioned.fused_apply_rotary_pos_emb(inputs.view(TOKENS, 1, 4, -1), angles)
        offsets = torch.zeros(5, dtype=torch.int32, device="cuda")
        return positioned.fused_apply_rotary_pos_emb_thd(heads[:, 0], offsets, angles)

    def packed(inputs: Any) -> Any:
        heads = inputs.view(TOKENS, 4, WIDTH // 4)
        offsets = torch.zeros(5, dtype=torch.int32, device="cuda")
        out, sums, probabilities = flash_attn.flash_attn_varlen_func(
            heads, heads, heads, offsets, offsets, 64, 64, causal=True, return_attn_probs=True
        )
        assert (sums.shape, probabilities.numel()) == ((4, TOKENS), 0)
        return out

    def cached(inputs: Any) -> Any:
        query = inputs.view(TOKENS, 1, 4, WIDTH // 4)
        keys = torch.empty(96, 16, 2, WIDTH // 4, **bf16)
        pages = torch.zeros(TOKENS, 3, dtype=torch.int32, device="cuda")
        return flash_attn.flash_attn_with_kvcache(
            query, keys, keys, cache_seqlens=pages[:, 0], causal=True, block_table=pages
        )

    def scan(inputs: Any) -> Any:
        x = inputs.view(2, TOKENS // 2, 4, WIDTH // 4)
        states = torch.empty(2, TOKENS // 2, 2, 16, requires_grad=True, **bf16)
        rates = torch.empty(2, TOKENS // 2, 4, requires_grad=True, **bf16)
        decay = torch.empty(4, requires_grad=True, device="cuda")
        scanned = mamba_chunk_scan_combined(x, rates, decay, states, states, 32)
        weight = torch.empty(WIDTH, 4, requires_grad=True, **bf16)
        channels = scanned.flatten(2).transpose(1, 2)
        return causal_conv1d.causal_conv1d_fn(channels, weight, activation="silu")

    def below(inputs: Any) -> Any:
        x = inputs.detach().view(2, TOKENS // 2, 4, WIDTH // 4)
        states = torch.empty(2, TOKENS // 2, 2, 16, **bf16)
        rates, decay = torch.empty(2, TOKENS // 2, 4, **bf16), torch.empty(4, device="cuda")
        out, ungated, _, _, _, last = scan_forward(x, rates, decay, states, states, 32, z=x)
        assert (ungated.shape, last.shape) == (x.shape, (2, 4, WIDTH // 4, 16))
        channels, weight = x.flatten(2).transpose(1, 2), torch.empty(WIDTH, 4, **bf16)
        # As before 1.1, and as before 1.2.
        for given in ((None, True), (None, None, True)):
            back = causal_conv1d_cuda.causal_conv1d_bwd(channels, weight, None, channels, *given)
            assert (back[1].shape, *back[2:]) == (weight.shape, None)
        grads = scan_backward(out, x, rates, decay, states, states, out, 32, z=x)
        assert [None if each is None else each.shape for each in grads[5:]] == [
            *(None, x.shape, None, None)
        ]
        assert causal_conv1d_cuda.causal_conv1d_fwd(
            channels, weight, None, None, None, None, True
        ).shape == (2, WIDTH, TOKENS // 2)
        back = causal_conv1d_cuda.causal_conv1d_bwd(
            channels, weight, None, channels, None, None, None, None, False, True
        )
        assert (back[1].shape, *back[2:]) == (weight.shape, None, None)
        decays = torch.empty(WIDTH, 16, device="cuda")
        given = (channels, channels, decays, states.mT, states.mT, None, channels, None)
        out, made, gated = selective_scan_cuda.fwd(*given, True)
        assert (gated.shape, made.shape) == (out.shape, (2, WIDTH, 1, 32))
        back = selective_scan_cuda.bwd(*given, out, made, out, None, True, True)
        assert [each is None for each in back] == [False] * 5 + [True] * 2 + [False] * 2
        assert back[2].shape == decays.shape
        rows = decays.T.contiguous()
        assert _layer_norm_fwd(rows, rows[0], None, 1e-6, is_rms_norm=True)[0].shape == rows.shape
        return inputs * 2

    def positions(inputs: Any) -> Any:
        rotary = RotaryEmbedding(WIDTH // 4, device="cuda")
        packed = inputs.view(1, TOKENS, 1, 4, WIDTH // 4).expand(-1, -1, 3, -1, -1)
        query, key, value = rotary(packed.clone()).unbind(2)
        # Parts of one tensor are turned in place, too.
        parts = packed.clone().split([1, 2], dim=2)
        rotary(parts[0].squeeze(2), parts[1])
        query = fast_hadamard_transform.hadamard_transform(query, 0.125)
        seen = xformers.ops.memory_efficient_attention(query, key, value)
        joined, _ = layer_norm_fn(
            seen.flatten(2), torch.ones(WIDTH, **bf16), residual=value.flatten(2), prenorm=True
        )
        labels = torch.zeros(TOKENS, dtype=torch.int64, device="cuda")
        return CrossEntropyLoss()(joined.view(TOKENS, WIDTH), labels)

    def private(inputs: Any) -> Any:
        heads = inputs.detach().view(2, TOKENS // 2, 4, WIDTH // 4)
        scale = (WIDTH // 4) ** -0.5
        rest = (0.0, scale, True, -1, -1, 0.0, None, False)
        out, sums, _, _ = _flash_attn_forward(heads, heads, heads, *rest)
        grads = [torch.empty_like(heads) for _ in range(3)]
        _flash_attn_backward(out, heads, heads, heads, out, sums, *grads, *rest)
        named = dict(zip(("dq", "dk", "dv"), grads, strict=True))
        given = dict(q=heads, k=heads, v=heads, out=out, softmax_lse=sums, **named)
        _flash_attn_backward(dout=out, **given, dropout_p=0.0, softmax_scale=None, causal=True)
        return inputs * 2

    def grouped(inputs: Any) -> Any:
        weights = torch.empty(4, WIDTH, 2 * WIDTH, requires_grad=True, **bf16)
        counts = torch.tensor([32, 32, 0, 64])
        return grouped_gemm.ops.gmm(inputs.view(TOKENS, WIDTH), weights, counts)

    def permuted(inputs: Any) -> Any:
        chosen = torch.zeros(TOKENS, 2, dtype=torch.int32, device="cuda")
        shares = torch.ones(TOKENS, 2, requires_grad=True, **bf16)
        rows, places = grouped_gemm.ops.permute(inputs.view(TOKENS, WIDTH), chosen)
        assert (rows.shape, places.shape) == ((2 * TOKENS, WIDTH), (2 * TOKENS,))
        return grouped_gemm.ops.unpermute(rows, places, shares)

    return {
        "apex_layer_norm": lambda: apex.normalization.FusedLayerNorm(WIDTH).to(**bf16),
        "apex_rms_norm": lambda: apex.normalization.FusedRMSNorm(WIDTH, memory_efficient=True).to(
            **bf16
        ),
        "apex_rope": lambda: called(turned),
        "flash": lambda: called(flash),
        "packed": lambda: called(packed),
        "cached": lambda: called(cached),
        "scan": lambda: called(scan),
        "below": lambda: called(below),
        "positions": lambda: called(positions),
        "private": lambda: called(private),
        "grouped": lambda: called(grouped),
        "permuted": lambda: called(permuted),
    }


def te_cases() -> dict[str, Callable[[], Any]]:
    """As ``cases``, above the Python of Transformer Engine."""
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch.attention.rope import apply_fused_qkv_rotary_pos_emb

    def attention(inputs: Any) -> Any:
        heads = inputs.view(TOKENS // 2, 2, 4, WIDTH // 4)
        module = te.DotProductAttention(4, WIDTH // 4, attn_mask_type="causal")
        return module(heads, heads, heads)

    def rope(inputs: Any) -> Any:
        joined = inputs.view(TOKENS, 1, 2, 128)
        frequencies = torch.zeros(TOKENS, 1, 1, 32, device="cuda")
        split = [64, 32, 32]
        query, key, value = apply_fused_qkv_rotary_pos_emb(joined, frequencies, frequencies, split)
        return query[:, :, :2] + query[:, :, 2:] + key + value

    def padding(inputs: Any) -> Any:
        rows, counts = te.Fp8Padding(2, 16)(inputs.view(TOKENS, WIDTH), [100, 28])
        assert counts == [112, 32]
        return te.Fp8Unpadding(2, 16)(rows, [100, 28])

    def checkpointed(inputs: Any) -> Any:
        return te.checkpoint(layer, inputs)

    params = {"params_dtype": torch.bfloat16}
    layer = te.LayerNormMLP(WIDTH, 4 * WIDTH, activation="swiglu", **params)
    return {
        "attention": lambda: called(attention),
        "rope": lambda: called(rope),
        "padding": lambda: called(padding),
        "mlp": lambda: layer,
        "checkpoint": lambda: called(checkpointed),
        "linear": lambda: te.Linear(WIDTH, WIDTH, **params),
    }


def called(function: Callable[[Any], Any]) -> Any:
    """Makes a module of a function, so that its passes are distinguished."""
    import torch

    module = torch.nn.Module()
    module.forward = function
    return module


def two_passes(make: Callable[[], Any]) -> None:
    """Two forward and backward passes."""
    import torch

    module = make()
    for _ in range(2):
        inputs = torch.randn(
            TOKENS, 1, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True
        )
        outputs = module(inputs)
        outputs.backward(torch.empty_like(outputs))


def refused() -> dict[str, str]:
    """What says no, and how."""
    import apex
    import flash_attn
    import torch
    import xformers.ops

    heads = torch.empty(1, 8, 1, 8, device="cuda")
    parameters = [torch.nn.Parameter(heads)]
    calls: dict[str, Callable[[], Any]] = {
        "amp": lambda: apex.amp.initialize(None, opt_level="O2"),
        "without weights": lambda: apex.normalization.FusedLayerNorm(8, elementwise_affine=False),
        "graphs": lambda: apex.optimizers.FusedAdam(parameters, capturable=True),
        "too many": lambda: apex.optimizers.FusedAdam(parameters, *range(11)),
        "twice": lambda: apex.optimizers.FusedAdam(parameters, 1e-3, lr=1e-3),
        "slopes": lambda: flash_attn.flash_attn_func(heads, heads, heads, alibi_slopes=1.0),
        "bias": lambda: xformers.ops.memory_efficient_attention(heads, heads, heads, object()),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except (InputError, TypeError) as error:
            found[name] = str(error)
    return found


def late_gradients() -> list[bool]:
    """Whether weights have gradients after the backward pass, and after they were asked for."""
    import torch
    import transformer_engine.pytorch as te

    options = {"params_dtype": torch.bfloat16, "delay_wgrad_compute": True}
    linear = te.Linear(WIDTH, WIDTH, **options)
    experts = te.GroupedLinear(2, WIDTH, WIDTH, bias=False, **options)
    called: list[str] = []
    linear.register_wgrad_accumulation_and_reduce_hooks(lambda: called.append("hook"))
    inputs = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    outputs = experts(linear(inputs), [100, 28])
    outputs.backward(torch.empty_like(outputs))
    parameters = [linear.weight, linear.bias, experts.weight0, experts.weight1]
    found = [parameter.grad is not None for parameter in parameters]
    for module in (experts, linear):
        module.backward_dw()
    found += [parameter.grad is not None for parameter in parameters]
    return [*found, called == ["hook"]]


def optimizer_lists() -> dict[str, Any]:
    """States of fused optimizers after two steps."""
    import apex.optimizers
    import torch

    found = {}
    for name, make in (
        ("apex", apex.optimizers.FusedAdam),
        ("masters", lambda params: apex.optimizers.FusedAdam(params, master_weights=True)),
        ("sgd", apex.optimizers.FusedSGD),
        ("lamb", apex.optimizers.FusedLAMB),
        ("adagrad", apex.optimizers.FusedAdagrad),
    ):
        parameters = [
            torch.nn.Parameter(torch.zeros(1000, device="cuda", dtype=dtype))
            for dtype in (torch.bfloat16, torch.bfloat16, torch.float32)
        ]
        optimizer = make(parameters)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
        state = optimizer.state[parameters[0]]
        found[name] = {key: str(value.dtype) for key, value in state.items()}
    return found


def scaled_losses() -> Any:
    """Two passes of Apex's O1, their gradients added. Its casts stay for good."""
    import torch
    from apex import amp

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).cuda()
    optimizers = [torch.optim.SGD(model.parameters())]
    model, optimizers = amp.initialize(model, optimizers, opt_level="O1", num_losses=2)
    for loss_id in range(2):
        outputs = model(torch.randn(TOKENS, WIDTH, device="cuda"))
        with amp.scale_loss(outputs.mean(), optimizers, loss_id=loss_id) as loss:
            loss.backward()
    return amp.state_dict()


def main(directory: Path) -> None:
    """Trace every case."""
    gpu = load_catalogue().gpus["a100_80"]
    virtual = emulate(ListSink(), world_size=1, rank=0, gpu=gpu)
    install_vendor()

    def traced(name: str, case: Callable[[], Any]) -> Any:
        sink = ListSink()
        virtual.restart(sink, world_size=1, rank=0)
        found = case()
        header = Header(1, 0, 1, "a100_80", gpu.memory_bytes, (name,), {})
        write_trace(directory / f"{name}.trace", Trace(header, tuple(sink.events)))
        return found

    for name, make in {**cases(), **(te_cases() if TE else {})}.items():
        traced(name, partial(two_passes, make))
    figures = {"states": traced("optimizers", optimizer_lists), "refused": refused()}
    if TE:
        figures["late"] = traced("late", late_gradients)
    figures["amp"] = traced("amp", scaled_losses)
    (directory / "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
