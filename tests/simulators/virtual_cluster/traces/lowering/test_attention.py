"""Attention by its shapes."""

import pytest

from tests.simulators.virtual_cluster.traces.lowering.tensors import only, op, t
from trainscout.simulators.predictor.workload.ir import Attention
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

Q, K, V = t(2, 32, 1024, 128), t(2, 8, 2048, 128), t(2, 8, 2048, 64)


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        (
            "_scaled_dot_product_flash_attention",
            (Q, K, V, 0.0, True),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "fwd", "bf16", "flash2"),
        ),
        (
            "_scaled_dot_product_cudnn_attention",
            (Q, K, V, None, True, 0.0, True),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "fwd", "bf16", "flash"),
        ),
        (
            "_cudnn_attention_forward",
            (Q, K, V, None, None, None, 1024, 2048, True, 0.0, True, False, 0.1),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "fwd", "bf16", "flash"),
        ),
        (
            "_cudnn_attention_backward",
            (Q, Q, K, V, Q, t(1), *[None] * 5, 1024, 2048, 0.0, True, 0.1),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "bwd", "bf16", "flash"),
        ),
        (
            "_scaled_dot_product_efficient_attention",
            (Q, K, V, None, True),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, False, "fwd", "bf16", "flash1"),
        ),
        (
            "_scaled_dot_product_flash_attention_backward",
            (Q, Q, K, V, Q, t(1), None, None, 1024, 2048, 0.0, True),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "bwd", "bf16", "flash2"),
        ),
        (
            "_scaled_dot_product_efficient_attention_backward",
            (Q, Q, K, V, None, Q, t(1), t(1), t(1), 0.0, (True, True, True, False), True),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "bwd", "bf16", "flash1"),
        ),
        (
            "_scaled_dot_product_efficient_attention_backward",
            (Q, Q, K, V, None, Q, t(1), t(1), t(1), 0.1, (True, True, True, False), True),
            Attention(
                *("", 2, 32, 8, 1024, 2048, 128, 64, True, "bwd", "bf16", "flash1"), dropout=True
            ),
        ),
        (
            "_scaled_dot_product_flash_attention",
            (Q, K, V, 0.1),
            Attention(
                *("", 2, 32, 8, 1024, 2048, 128, 64, False, "fwd", "bf16", "flash2"), dropout=True
            ),
        ),
        (
            "_flash_attention_forward",
            (t(2, 64, 8, 16), t(2, 64, 4, 16), t(2, 64, 4, 16), None, None, 64, 64, 0.0, True),
            Attention("", 2, 8, 4, 64, 64, 16, 16, True, "fwd", "bf16", "flash2"),
        ),
        (
            "_scaled_dot_product_flash_attention",
            (Q, K, V, 0.0, True, ("implementation", "FA3")),
            Attention("", 2, 32, 8, 1024, 2048, 128, 64, True, "fwd", "bf16", "flash"),
        ),
        (
            "_flash_attention_forward",
            (
                t(128, 8, 16),
                t(128, 4, 16),
                t(128, 4, 16),
                t(5, dtype="int32"),
                t(5, dtype="int32"),
                32,
                32,
                0.0,
                False,
            ),
            Attention("", 4, 8, 4, 32, 32, 16, 16, False, "fwd", "bf16", "flash2"),
        ),
    ],
)
def test_attention(name: str, inputs: tuple, expected: Attention) -> None:  # type: ignore[type-arg]
    found = only(op(f"aten.{name}.default", inputs, t(1)))
    assert isinstance(found, Attention)
    wanted = {**_fields(expected), "name": name}
    assert _fields(found) == wanted


@pytest.mark.parametrize(
    ("causal", "window", "keys", "half"), [(True, (-1, 0), 32, True), (False, (7, 0), 8, False)]
)
def test_sequences_of_many_lengths(
    causal: bool, window: tuple[int, int], keys: int, half: bool
) -> None:
    query, key, bounds = t(128, 8, 16), t(128, 4, 16), t(5, dtype="int32")
    ahead = (query, key, key, bounds, bounds, 32, 32, causal, 0.1, window)
    found = only(op("torch_attn._varlen_attn.default", ahead, query))
    made = Attention("", 4, 8, 4, 32, keys, 16, 16, half, "fwd", "bf16", "flash2")
    assert _fields(found) == {**_fields(made), "name": "_varlen_attn"}
    sums = t(8, 128, dtype="fp32")
    back = (query, query, key, key, query, sums, bounds, bounds, 32, 32, causal, t(2), 0.1, window)
    found = only(op("torch_attn._varlen_attn_backward.default", back, query))
    made = Attention("", 4, 8, 4, 32, keys, 16, 16, half, "bwd", "bf16", "flash2")
    assert _fields(found) == {**_fields(made), "name": "_varlen_attn_backward"}


@pytest.mark.parametrize(("mask", "causal"), [("causal_mask", True), ("noop_mask", False)])
@pytest.mark.parametrize(("name", "pass_"), [("", "fwd"), ("_backward", "bwd")])
def test_flex_attention(mask: str, causal: bool, name: str, pass_: str) -> None:
    blocks = (1024, 2048, t(2, 1, 8, dtype="int32"), None, 128, 128, mask)
    options = (("BACKEND", "AUTO"), ("OUTPUT_LOGSUMEXP", True))
    inputs = (Q, K, V, "_identity", blocks, 0.1, options, (), ())
    lowered = lower(op(f"higher_order.flex_attention{name}", inputs, Q))
    assert lowered.estimated
    made = f"flex_attention{name}"
    expected = Attention(made, 2, 32, 8, 1024, 2048, 128, 64, causal, pass_, "bf16", "flash2")
    assert lowered.kernels == (expected,)


def test_flex_attention_of_few_blocks() -> None:
    blocks = (1024, 2048, t(2, 1, 8, dtype="int32"), None, 128, 128, "window")
    inputs = (Q, K, V, "_identity", blocks, 0.1, (), (), (), ("computed_share", 0.125))
    lowered = lower(op("higher_order.flex_attention", inputs, Q))
    assert not lowered.estimated
    expected = Attention("", 16, 32, 8, 128, 256, 128, 64, False, "fwd", "bf16", "flash2")
    found = only(op("higher_order.flex_attention", inputs, Q))
    assert isinstance(found, Attention)
    assert _fields(found) == {**_fields(expected), "name": "flex_attention"}


def _fields(kernel: Attention) -> dict[str, object]:
    return {name: getattr(kernel, name) for name in kernel.__slots__}
