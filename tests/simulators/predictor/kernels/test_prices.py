"""price_kernels as a whole: every GPU, any order, same answer."""

import random
from dataclasses import replace

import numpy as np
import pytest

from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Collective, GroupedGemm, Streaming

from .gpus import GPUS, attention, gemm


def mixed_ops(dtype: str) -> list:  # type: ignore[type-arg]
    return [
        gemm(2048, 9216, 12288, dtype),
        attention(2048, heads=12, dtype=dtype),
        Streaming("dropout", "dropout", 50_331_648),
        gemm(9216, 12288, 2048, dtype, layout="NT", accumulate=4),
        GroupedGemm("experts", 8, 1024, 4096, 7168, dtype),
        attention(2048, heads=12, pass_="bwd", dtype=dtype),
        Streaming("norm", "norm_bwd", 150_994_944),
        GroupedGemm("experts", 8, 1024, 4096, 7168, dtype, layout="NT", accumulate=4),
        gemm(64, 64, 128, dtype, batch=96),
    ]


@pytest.mark.parametrize(
    ("gpu", "dtype"), [(name, dtype) for name, gpu in GPUS.items() for dtype in gpu.peak_flops]
)
def test_every_gpu_and_precision_has_a_price(gpu: str, dtype: str) -> None:
    prices = price_kernels(GPUS[gpu], mixed_ops(dtype))
    assert np.all(np.isfinite(prices.seconds))
    assert np.all(prices.seconds >= 1e-6)
    assert set(prices.evidence) <= {1, 2}


@pytest.mark.parametrize("gpu", ["a100_80", "h800", "v100_32"])
def test_order_does_not_matter(gpu: str) -> None:
    ops = mixed_ops("fp16") * 3
    order = list(range(len(ops)))
    random.Random(0).shuffle(order)
    straight = price_kernels(GPUS[gpu], ops)
    shuffled = price_kernels(GPUS[gpu], [ops[index] for index in order])
    np.testing.assert_array_equal(shuffled.seconds, straight.seconds[order])
    np.testing.assert_array_equal(shuffled.evidence, straight.evidence[order])
    np.testing.assert_array_equal(shuffled.memory_bound, straight.memory_bound[order])


def test_alone_or_together() -> None:
    ops = mixed_ops("bf16")
    together = price_kernels(GPUS["h100"], ops).seconds
    alone = [price_kernels(GPUS["h100"], [op]).seconds[0] for op in ops]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_nothing_costs_nothing() -> None:
    assert price_kernels(GPUS["h100"], []).seconds.shape == (0,)


def test_collectives_are_priced_elsewhere() -> None:
    with pytest.raises(InputError, match="is not a kernel"):
        price_kernels(GPUS["h100"], [Collective("c", "all_reduce", 1, "tp")])  # type: ignore[list-item]


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(InputError, match=r"gemm\.layout"):
        price_kernels(GPUS["h100"], [gemm(64, 64, 64, layout="TT")])


@pytest.mark.parametrize("gpu", ["a100_80", "h100"])
@pytest.mark.parametrize(
    ("head_dim", "pass_", "kernel", "times"),
    [
        # The medians of what its authors measured, and a head size between theirs.
        (64, "fwd", "flash1", 1.78),
        (128, "bwd", "flash1", 2.28),
        (96, "bwd", "flash1", 2.03),
        (64, "fwd", "flash1_triton", 1.4),
        (128, "bwd", "flash1_triton", 2.0),
    ],
)
def test_the_first_flash_attention_is_slower_than_the_second(
    gpu: str, head_dim: int, pass_: str, kernel: str, times: float
) -> None:
    op = attention(4096, heads=16, pass_=pass_)
    op = replace(op, head_dim=head_dim, head_dim_v=head_dim, kernel="flash2")
    both = [op, replace(op, kernel=kernel)]
    second, first = price_kernels(GPUS[gpu], both).seconds
    assert first == pytest.approx(times * second)
    added = price_kernels(GPUS[gpu], [replace(op, dropout=True) for op in both]).seconds
    assert added[1] - first == pytest.approx(added[0] - second)


def test_attention_in_fp32_is_pytorch_s_own_kernel_whatever_stands_for_it() -> None:
    op = replace(attention(4096, heads=16), dtype="fp32", kernel="flash2")
    second, first = price_kernels(GPUS["h100"], [op, replace(op, kernel="flash1")]).seconds
    assert first == second


@pytest.mark.parametrize(("gpu", "factor"), [("h100", 1.15), ("h800", 1.15), ("b200", 1.0)])
def test_8_bit_gradients_are_summed_in_fp32_at_a_price_on_hopper(gpu: str, factor: float) -> None:
    # A cube, so that only the layout tells the products apart.
    ops = [gemm(8192, 8192, 8192, "fp8", layout=layout) for layout in ("TN", "NN")]
    forward, gradient = price_kernels(GPUS[gpu], ops).seconds
    assert gradient / forward == pytest.approx(factor)
    ops = [replace(op, dtype="bf16") for op in ops]
    forward, gradient = price_kernels(GPUS[gpu], ops).seconds
    assert gradient == forward


def test_one_kernel_for_all_groups_saves_their_launches() -> None:
    op = GroupedGemm("experts", 40, 616, 3072, 5120, "bf16")
    apart, together = price_kernels(GPUS["b200"], [op, replace(op, one_kernel=True)]).seconds
    assert together < apart


@pytest.mark.parametrize("gpu", ["h100", "b200", "gb300"])
def test_no_product_waits_for_dram_longer_than_it_runs(gpu: str) -> None:
    """Gradients of many experts are little but traffic, whatever a kind of scales saves."""
    experts = GroupedGemm("experts", 128, 64, 16384, 7168, "fp8", layout="NT", accumulate=4)
    (share,) = price_kernels(GPUS[gpu], [experts]).memory_bound
    assert 0.8 < share <= 1
