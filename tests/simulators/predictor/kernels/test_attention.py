"""The flash-attention model against published training kernels."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels.attention import price_attention
from trainscout.simulators.predictor.kernels.batch_prices import EVIDENCE_ORDER
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Attention

from .gpus import GPUS, attention, attention_flops


def tflops(gpu: str | Gpu, op: Attention) -> float:
    declared = GPUS[gpu] if isinstance(gpu, str) else gpu
    return attention_flops(op) / price_kernels(declared, [op]).seconds[0] / 1e12


def burst_tflops(gpu: str, op: Attention) -> float:
    fields = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal")
    shape = np.array([[int(getattr(op, name)) for name in fields]])
    found, _, _ = price_attention(GPUS[gpu], op.dtype, op.pass_, shape, op.kernel, sustained=False)
    return attention_flops(op) / found[0] / 1e12


def both_passes(gpu: str, **shape: object) -> float:
    ops = [attention(pass_=name, **shape) for name in ("fwd", "bwd")]  # type: ignore[arg-type]
    total = price_kernels(GPUS[gpu], ops).seconds.sum()
    return sum(map(attention_flops, ops)) / total / 1e12


@pytest.mark.parametrize(
    ("gpu", "seq", "heads", "kv_heads", "forward", "backward"),
    [
        # cuDNN, head size 128, causal, batch 1 (NVIDIA/cudnn-frontend).
        ("h200", 2048, 64, 8, 484, 370),
        ("h200", 4096, 64, 8, 613, 474),
        ("h200", 16384, 64, 8, 673, 579),
        ("b200", 4096, 128, 8, 1141, 833),
        ("b200", 16384, 128, 8, 1475, 1152),
        ("gb200", 4096, 64, 8, 1408, 1148),
        ("gb200", 16384, 64, 8, 1708, 1402),
    ],
)
def test_cudnn(
    gpu: str, seq: int, heads: int, kv_heads: int, forward: float, backward: float
) -> None:
    shape = {"seq": seq, "heads": heads, "kv_heads": kv_heads}
    assert burst_tflops(gpu, attention(**shape)) == pytest.approx(forward, rel=0.12)
    backward_op = attention(pass_="bwd", **shape)
    assert burst_tflops(gpu, backward_op) == pytest.approx(backward, rel=0.12)


def test_power_limits_long_attention() -> None:
    # SimuMax, B200, Transformer Engine over 131072 tokens: 1112-1128 forward, 930 backward, on a
    # board whose products hold 0.498 of the peak.
    shape = {"seq": 131072, "heads": 16, "kv_heads": 2}
    board = dataclasses.replace(GPUS["b200"], sustained_fraction=0.498)
    assert tflops(board, attention(**shape)) == pytest.approx(1120, rel=0.06)
    assert tflops(board, attention(pass_="bwd", **shape)) == pytest.approx(930, rel=0.15)
    # Hopper's kernels stay below the limit: a few per cent.
    for op in (attention(4096, heads=64), attention(4096, heads=64, pass_="bwd")):
        assert 1.0 <= burst_tflops("h100", op) / tflops("h100", op) <= 1.08


@pytest.mark.parametrize(
    ("seq", "batch", "causal", "head_dim", "published"),
    [
        # FlashAttention-2 on A100, forward + backward, 2048 wide (Dao 2023, figure 4).
        (512, 32, True, 128, 99),
        (2048, 8, True, 128, 155),
        (4096, 4, True, 128, 173),
        (16384, 1, True, 128, 189),
        (4096, 4, False, 128, 196),
        (4096, 4, True, 64, 156),
    ],
)
def test_fa2_on_a100(seq: int, batch: int, causal: bool, head_dim: int, published: float) -> None:
    rate = both_passes(
        "a100_80", seq=seq, batch=batch, heads=2048 // head_dim, head_dim=head_dim, causal=causal
    )
    assert rate == pytest.approx(published, rel=0.12)


def test_fa3_on_h100() -> None:
    # Shah et al. 2024, causal, head size 128: 579 at 4k, 616 at 16k forward.
    assert burst_tflops("h100", attention(4096, batch=4)) == pytest.approx(579, rel=0.05)
    assert burst_tflops("h100", attention(16384)) == pytest.approx(616, rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "seq", "forward", "backward"),
    [
        # FlashAttention-2, causal, head size 128: PyTorch on H200 and GB200-class cuDNN tables.
        ("h200", 4096, 297, 245),
        ("h200", 16384, 327, 305),
        ("gb300", 16384, 403, 330),
    ],
)
def test_flash2_on_newer_gpus(gpu: str, seq: int, forward: float, backward: float) -> None:
    shape = {"seq": seq, "heads": 64, "kv_heads": 8}
    for pass_, published in (("fwd", forward), ("bwd", backward)):
        op = dataclasses.replace(attention(pass_=pass_, **shape), kernel="flash2")  # type: ignore[arg-type]
        assert tflops(gpu, op) == pytest.approx(published, rel=0.12)
        assert tflops(gpu, op) < tflops(gpu, dataclasses.replace(op, kernel="flash"))


def test_ampere_has_one_generation() -> None:
    op = attention(4096)
    assert tflops("a100_80", op) == tflops("a100_80", dataclasses.replace(op, kernel="flash2"))


def test_h800_latent_attention_in_training() -> None:
    # deepseek-ai/profile-data: 128 heads of 192/128 at 4096 tokens: 557 forward; backward 448
    # for the main kernel alone, which our price surrounds with its two helpers.
    shape = {"seq": 4096, "heads": 128, "head_dim": 192, "head_dim_v": 128}
    assert tflops("h800", attention(**shape)) == pytest.approx(557, rel=0.08)
    assert 340 <= tflops("h800", attention(pass_="bwd", **shape)) <= 448


def test_few_heads_per_rank_cost_up_to_twice() -> None:
    # SimuMax, A100-PCIe, 4096 tokens: 185 TFLOPS with 64 heads, 80 with 4.
    many, few = (tflops("a100_80", attention(4096, heads=heads)) for heads in (64, 4))
    assert 1.5 <= many / few <= 2.4


def test_h20_forward_from_hopper() -> None:
    # Dao-AILab/flash-attention issue 1310: FA3 126 non-causal, 108 causal of 148 peak.
    for causal, published in ((False, 126), (True, 108)):
        op = attention(2048, batch=2, causal=causal, dtype="fp16")
        assert tflops("h20", op) == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize("gpu", ["a100_80", "h100", "h200", "b200", "gb200"])
def test_backward_takes_about_three_times_forward(gpu: str) -> None:
    ops = [attention(4096, heads=64, pass_=name) for name in ("fwd", "bwd")]
    forward, backward = price_kernels(GPUS[gpu], ops).seconds
    assert 2.5 <= backward / forward <= 3.9


def test_grouped_queries_read_less() -> None:
    full, grouped = price_kernels(
        GPUS["h100"], [attention(512, heads=64, batch=8, kv_heads=heads) for heads in (64, 8)]
    ).memory_bound
    assert grouped < full


@given(
    gpu=st.sampled_from(sorted(GPUS)),
    batch=st.integers(1, 8),
    kv_heads=st.integers(1, 16),
    group=st.integers(1, 8),
    seq_q=st.integers(1, 9000),
    seq_k=st.integers(1, 9000),
    head_dim=st.sampled_from([32, 64, 80, 96, 128, 192, 256]),
    causal=st.booleans(),
    pass_=st.sampled_from(["fwd", "bwd"]),
)
def test_never_beats_the_roofline(  # type: ignore[no-untyped-def]
    gpu, batch, kv_heads, group, seq_q, seq_k, head_dim, causal, pass_
) -> None:
    device, heads = GPUS[gpu], kv_heads * group
    op = Attention(
        "a", batch, heads, kv_heads, seq_q, seq_k, head_dim, head_dim, causal, pass_, "fp16"
    )
    doubled = Attention(
        "a", 2 * batch, heads, kv_heads, seq_q, seq_k, head_dim, head_dim, causal, pass_, "fp16"
    )
    prices = price_kernels(device, [op, doubled])
    moved = 2.0 * batch * 2 * head_dim * (heads * seq_q + kv_heads * seq_k)
    assert prices.seconds[0] >= attention_flops(op) / device.peak("fp16")
    assert prices.seconds[0] >= moved / device.memory_bandwidth_bytes_per_s
    assert prices.seconds[1] >= prices.seconds[0]
    assert np.all((prices.memory_bound >= 0) & (prices.memory_bound <= 1))


def test_volta_is_an_estimate() -> None:
    prices = price_kernels(GPUS["v100_32"], [attention(2048, dtype="fp16")])
    assert EVIDENCE_ORDER[prices.evidence[0]] is Evidence.ESTIMATED


def test_unknown_pass_and_precision_are_refused() -> None:
    with pytest.raises(InputError, match=r"attention\.pass_"):
        price_kernels(GPUS["h100"], [attention(1024, pass_="backward")])
    with pytest.raises(InputError, match=r"training\.precision"):
        price_kernels(GPUS["v100_32"], [attention(1024, dtype="bf16")])
    with pytest.raises(InputError, match=r"attention\.kernel"):
        price_kernels(GPUS["h100"], [dataclasses.replace(attention(1024), kernel="serving")])


@pytest.mark.parametrize(
    ("kernel", "pass_", "shape", "causal", "without", "with_dropout"),
    [
        # One H100 80 GB (SXM), torch 2.11, CUDA 13.0, microseconds; batch, heads, tokens, width.
        ("flash2", "fwd", (2, 32, 2048, 128), True, 266, 322),
        ("flash2", "fwd", (1, 16, 8192, 128), False, 1509, 1909),
        ("flash2", "bwd", (8, 16, 1024, 64), True, 317, 358),
        ("flash2", "bwd", (2, 32, 2048, 128), True, 852, 957),
        ("flash", "fwd", (1, 16, 8192, 128), True, 472, 1040),
        ("flash", "bwd", (8, 16, 1024, 64), False, 265, 332),
    ],
)
def test_dropout_takes_lanes_for_every_probability(
    kernel: str,
    pass_: str,
    shape: tuple[int, int, int, int],
    causal: bool,
    without: float,
    with_dropout: float,
) -> None:
    batch, heads, tokens, width = shape
    names = {
        "batch": batch,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width,
        "causal": causal,
    }
    op = attention(tokens, pass_=pass_, **names)  # type: ignore[arg-type]
    plain = dataclasses.replace(op, kernel=kernel, head_dim_v=width)
    both = [plain, dataclasses.replace(plain, dropout=True)]
    prices = price_kernels(GPUS["h100"], both)
    added = float(prices.seconds[1] - prices.seconds[0])
    assert added * 1e6 == pytest.approx(with_dropout - without, rel=0.4)
    assert prices.memory_bound[1] < prices.memory_bound[0]
    # A100's lanes are 3.4 times as slow, and its newest kernel is the second.
    (first, second) = price_kernels(GPUS["a100_80"], both).seconds
    slower = 66.9 / 19.5 * (12 / 34 if (kernel, pass_) == ("flash", "fwd") else 1)
    slower *= 16 / 20 if (kernel, pass_) == ("flash", "bwd") else 1
    assert second - first == pytest.approx(added * slower)


def test_a_gpu_that_declares_bf16_alone_has_lanes_too() -> None:
    h100 = GPUS["h100"]
    alone = dataclasses.replace(h100, peak_flops={"bf16": h100.peak("bf16")})
    op = dataclasses.replace(attention(2048, pass_="fwd"), kernel="flash2", dropout=True)
    (with_alone, plain) = price_kernels(
        alone, [op, dataclasses.replace(op, dropout=False)]
    ).seconds
    assert with_alone > plain
