"""Memory-bound kernels against published bandwidths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Streaming

from .gpus import GPUS

KINDS = [
    "elementwise",
    "activation",
    "norm_fwd",
    "norm_bwd",
    "norm_fwd_plain",
    "norm_bwd_plain",
    "softmax_fwd",
    "softmax_bwd",
    "dropout",
    "cross_entropy",
    "embedding",
    "embedding_bwd",
    "optimizer",
    "cast",
    "permute",
    "token_permute",
    "memcpy",
    "reduce",
]


def gigabytes_per_s(gpu: str, kind: str, moved: int = 10**9) -> float:
    return moved / price_kernels(GPUS[gpu], [Streaming("s", kind, moved)]).seconds[0] / 1e9


@pytest.mark.parametrize(
    ("gpu", "kind", "low", "high"),
    [
        ("v100_32", "elementwise", 770, 869),
        ("v100_32", "norm_fwd", 487, 608),
        ("v100_32", "softmax_fwd", 535, 624),
        ("a40", "elementwise", 570, 679),
        ("a100_40", "elementwise", 1270, 1403),
        ("a100_80", "elementwise", 1677, 1800),
        ("h100", "elementwise", 2900, 3261),
        ("h100", "activation", 2440, 2850),
        ("h200", "norm_fwd", 3200, 3790),
        ("gb200", "norm_fwd", 5300, 6550),
        ("gb200", "norm_bwd", 4500, 5700),
        ("h200", "norm_bwd", 3100, 3700),
        ("gb200", "norm_bwd_plain", 1900, 2700),
        ("h200", "norm_bwd_plain", 1450, 1850),
        ("b200", "cast", 5000, 6000),
    ],
)
def test_published_bandwidth(gpu: str, kind: str, low: float, high: float) -> None:
    assert low <= gigabytes_per_s(gpu, kind) <= high


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_plain_norm_backward_is_slow(gpu: str) -> None:
    # PyTorch's own reach less than half of the forward's bandwidth wherever both are measured.
    plain = gigabytes_per_s(gpu, "norm_bwd_plain")
    assert plain < 0.55 * gigabytes_per_s(gpu, "norm_fwd")
    assert plain <= gigabytes_per_s(gpu, "norm_bwd")


def test_small_tensors_stay_in_l2() -> None:
    # microsoft/vidur, A100: additions of 10-30 MB at 2032 GB/s, large ones at 1723.
    assert gigabytes_per_s("a100_80", "elementwise", 15_000_000) > 1500
    prices = price_kernels(GPUS["a100_80"], [Streaming("s", "elementwise", 15_000_000)])
    assert prices.seconds[0] - 2e-6 == pytest.approx(15e6 / 2039e9)


@given(
    gpu=st.sampled_from(sorted(GPUS)),
    kind=st.sampled_from(KINDS),
    moved=st.integers(0, 10**10),
    launches=st.integers(1, 20),
)
def test_bounds_and_order(gpu: str, kind: str, moved: int, launches: int) -> None:
    device = GPUS[gpu]
    prices = price_kernels(
        device,
        [
            Streaming("s", kind, moved, launches),
            Streaming("s", kind, moved + 4096, launches),
            Streaming("s", kind, moved, launches + 1),
        ],
    )
    first, larger, split = prices.seconds
    assert first >= moved / device.memory_bandwidth_bytes_per_s
    assert larger > first
    assert split > first
    assert 0.0 <= prices.memory_bound.min() <= prices.memory_bound.max() <= 1.0


def test_unknown_class_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'norm_fwd'"):
        price_kernels(GPUS["h100"], [Streaming("s", "norm_fw", 10)])
