"""Recurrent layers and products with quantised weights by their shapes."""

from tests.simulators.virtual_cluster.traces.lowering.tensors import op, t
from trainscout.simulators.predictor.workload.ir import Gemm, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

STEPS, BATCH, WIDTH, HIDDEN = 7, 3, 8, 16
WEIGHTS = (t(64, 8), t(64, 16), t(64), t(64), t(64, 16), t(64, 16), t(64), t(64))
X, STATE, OUTPUT = t(STEPS, BATCH, WIDTH), t(2, BATCH, HIDDEN), t(STEPS, BATCH, HIDDEN)
SETTINGS = (2, HIDDEN, 0, 2, False, 0.0, True, False, (), None)


def _flops(made: Op) -> int:
    return sum(2 * g.m * g.n * g.k for g in lower(made).kernels if isinstance(g, Gemm))


def test_a_backward_pass_multiplies_twice_what_a_forward_pass_does() -> None:
    forward = op("aten._cudnn_rnn.default", (X, WEIGHTS, 4, None, STATE, STATE, *SETTINGS), OUTPUT)
    gradients = (OUTPUT, OUTPUT, STATE, STATE)
    backward = op(
        "aten._cudnn_rnn_backward.default",
        (X, WEIGHTS, 4, t(0), STATE, STATE, *gradients, *SETTINGS, OUTPUT, (True,) * 4),
        X,
    )
    flops = 2 * STEPS * BATCH * 64 * (WIDTH + HIDDEN + 2 * HIDDEN)
    assert _flops(forward) == flops
    assert _flops(backward) == 2 * flops
    assert lower(forward).estimated
    assert (lower(forward).launches, lower(backward).launches) == (1, 1)


def test_4_bit_weights_are_made_16_bit_and_multiplied() -> None:
    weight, scales = t(64 * 32 // 2, 1, dtype="uint8"), t(64 * 32 // 64, dtype="float32")
    name = "bitsandbytes.gemm_4bit.default"
    made = op(name, (t(5, 32), weight, (64, 32), scales, 64, "nf4"), t(5, 64))
    cast, product = lower(made).kernels
    assert isinstance(cast, Streaming)
    assert cast.bytes == 64 * 32 // 2 + 64 * 32 // 64 * 4 + 64 * 32 * 2
    assert product == Gemm("gemm_4bit", 5, 64, 32, "bf16")
    eight, code = t(32, dtype="uint8"), t(256, dtype="float32")
    above = t(1, dtype="float32")
    nested = op(name, (t(5, 32), weight, (64, 32), above, 64, "nf4", None, eight, code), t(5, 64))
    put_together = lower(nested).kernels[0]
    assert put_together.bytes == 64 * 32 // 2 + 64 * 32 * 2 + 4 + 4 * 256 + (1 + 16) * 32
    assert (cast.launches, put_together.launches) == (1, 3)


def test_an_update_of_8_bits_moves_all_but_the_gradient_twice() -> None:
    weight, moment = t(64, 512), t(64, 512, dtype="uint8")
    code, scales = t(256, dtype="float32"), t(64 * 2, dtype="float32")
    given = ("adam", weight, weight, moment, moment, 0.9, code, code, scales, scales)
    (kernel,) = lower(op("bitsandbytes.optimizer_update_8bit_blockwise.default", given)).kernels
    moved = 64 * 512 * (3 * 2 + 4 * 1) + 4 * 4 * (256 + 128)
    assert (kernel.kind, kernel.bytes, kernel.launches) == ("optimizer", moved, 1)


def test_8_bit_weights_are_multiplied_and_their_outliers_once_more() -> None:
    x, x_8, weight = (
        t(5, 2000, dtype="float16"),
        t(5, 2000, dtype="int8"),
        t(64, 2000, dtype="int8"),
    )
    stats, out = (t(5, dtype="float32"), t(64, dtype="float32")), t(5, 64, dtype="float16")
    plain = op("bitsandbytes.int8_scaled_mm.default", (x_8, weight, *stats), out)
    product, scale = lower(plain).kernels
    assert product == Gemm("int8_scaled_mm", 5, 64, 2000, "fp8")
    assert isinstance(scale, Streaming)
    assert scale.bytes == 5 * 64 * (4 + 2)
    given = (x, x_8, weight, *stats, t(2, dtype="int64"))
    mixed = op("bitsandbytes.int8_mixed_scaled_mm.default", given, out, t(5, 2, dtype="float16"))
    sizes = [(g.k, g.dtype) for g in lower(mixed).kernels if isinstance(g, Gemm)]
    assert sizes == [(2000, "fp8"), (2, "fp16")]
