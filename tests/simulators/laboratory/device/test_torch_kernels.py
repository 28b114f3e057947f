"""Kernels built on a CPU: the right product, the right size; skipped without PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainscout.simulators.laboratory.device.timing import host_clock, open_torch
from trainscout.simulators.laboratory.device.torch_kernels import TorchKernels
from trainscout.simulators.laboratory.kernels.measure import Machine
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Attention, Gemm, GroupedGemm, Streaming

torch = pytest.importorskip("torch")


KERNELS = TorchKernels(torch, "cpu")
STREAMING_KINDS = (
    *("elementwise", "norm_fwd", "norm_bwd", "softmax_fwd", "softmax_bwd", "dropout"),
    *("cross_entropy", "embedding", "embedding_bwd", "optimizer", "cast", "permute"),
    *("memcpy", "reduce"),
)


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("batch", [1, 3])
def test_gemm_has_the_shape_asked_for(layout: str, batch: int) -> None:
    op = Gemm("", 48, 32, 16, "bf16", batch=batch, layout=layout)
    result = KERNELS.build(op).call()
    assert tuple(result.shape)[-2:] == (48, 32)
    assert result.numel() == batch * 48 * 32


def test_weight_gradient_falls_back_where_nothing_accumulates() -> None:
    built = KERNELS.build(Gemm("", 48, 32, 16, "bf16", layout="NT", accumulate=4))
    assert "accumulate" not in built.impl


@pytest.mark.parametrize(
    ("layout", "shape"), [("TN", (128, 64)), ("NN", (128, 64)), ("NT", (4, 64, 16))]
)
def test_grouped_gemm_has_the_shape_asked_for(layout: str, shape: tuple[int, ...]) -> None:
    op = GroupedGemm("", 4, 32, 64, 16, "bf16", layout=layout, one_kernel=True)
    assert tuple(KERNELS.build(op).call().shape) == shape


@pytest.mark.parametrize(("layout", "shape"), [("TN", (32, 64)), ("NT", (64, 16))])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_experts_in_a_loop_are_as_many_products(
    monkeypatch: pytest.MonkeyPatch, layout: str, shape: tuple[int, ...], dtype: str
) -> None:
    name = "_scaled_mm" if dtype == "fp8" else "matmul"
    plain, shapes = getattr(torch, name), []

    def spied(*operands: object, **options: object) -> object:
        result = plain(*operands, **options)
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(torch, name, spied)
    built = KERNELS.build(GroupedGemm("", 4, 32, 64, 16, dtype, layout=layout))
    shapes.clear()
    built.call()
    assert shapes == [shape]
    assert built.repeats == 4
    # A call of four seconds' worth is timed as four.
    device = Machine("cpu")
    monkeypatch.setattr(device, "_clock", lambda call, count: float(count))
    assert device.burst_s(built) == device.sustained_s(built, 4.0) == 4.0


def test_gradients_of_weights_keep_32_bits_of_8_bit_products() -> None:
    gradient = Gemm("", 48, 32, 16, "fp8", layout="NT", accumulate=4)
    assert KERNELS.build(gradient).call().dtype == torch.float32
    assert KERNELS.build(replace(gradient, accumulate=0)).call().dtype == torch.bfloat16


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_both_passes(kv_heads: int) -> None:
    op = Attention("", 2, 4, kv_heads, 64, 64, 32, 32, True, "fwd", "bf16")
    assert tuple(KERNELS.build(op).call().shape) == (2, 4, 64, 32)
    gradients = KERNELS.build(replace(op, pass_="bwd")).call()
    assert [tuple(each.shape) for each in gradients] == [
        (2, 4, 64, 32),
        (2, kv_heads, 64, 32),
        (2, kv_heads, 64, 32),
    ]


@pytest.mark.parametrize("kind", STREAMING_KINDS)
def test_streaming_moves_about_what_was_asked(kind: str) -> None:
    built = KERNELS.build(Streaming("", kind, 4_000_000))
    assert built.bytes == pytest.approx(4_000_000, rel=0.25)
    built.call()


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be built"):
        KERNELS.build(Streaming("", "sort", 1000))


def test_cpu_can_be_opened_and_an_absent_gpu_not() -> None:
    assert open_torch("cpu")[1] is host_clock
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="not there"):
            open_torch("cuda")
