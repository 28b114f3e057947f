"""Convolutions: conservation laws, and published times of networks' convolutions."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels.convolution import PASSES, implicit_gemm
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Convolution, Gemm

from .gpus import GPUS

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)


def vgg16(batch: int, dtype: str) -> list[Convolution]:
    """Forward convolutions of VGG-16 on 224 x 224 images; 0 is a pooling layer."""
    found, size, channels = [], 224, 3
    for width in VGG16:
        if not width:
            size //= 2
            continue
        convolution = Convolution(
            "c", batch, channels, width, (size, size), (3, 3), dtype, padding=(1, 1)
        )
        found.append(convolution)
        channels = width
    return found


def resnet50(batch: int, dtype: str) -> list[Convolution]:
    """Forward convolutions of ResNet-50 (v1.5) on 224 x 224 images."""

    def convolution(inward: int, outward: int, size: int, taps: int, stride: int) -> Convolution:
        return Convolution(
            *("c", batch, inward, outward, (size, size), (taps, taps), dtype),
            stride=(stride, stride),
            padding=(taps // 2, taps // 2),
        )

    found, size, channels = [convolution(3, 64, 224, 7, 2)], 56, 64
    for blocks, width, first_stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            found += [
                convolution(channels, width, size, 1, 1),
                convolution(width, width, size, 3, stride),
                convolution(width, 4 * width, size // stride, 1, 1),
            ]
            if block == 0:
                found.append(convolution(channels, 4 * width, size, 1, stride))
            size, channels = size // stride, 4 * width
    return found


def seconds(gpu: str, ops: list) -> float:
    return float(price_kernels(GPUS[gpu], ops).seconds.sum())


# Milliseconds of all convolutions of one forward pass on a V100, cuDNN 7.1, channels first
# (PaddlePaddle/Paddle@7f83f83b:paddle/contrib/float16/float16_benchmark.md), by batch size.
PUBLISHED_MS = {
    (vgg16, "fp32"): {8: 21.42, 16: 41.35, 32: 60.58, 64: 130.11},
    (vgg16, "fp16"): {8: 4.55, 16: 7.99, 32: 14.63, 64: 28.67},
    (resnet50, "fp32"): {8: 8.36, 16: 13.80, 32: 24.45, 64: 41.21, 128: 73.44},
    (resnet50, "fp16"): {8: 4.21, 16: 5.63, 32: 8.77, 64: 15.24, 128: 28.40},
}


def test_published_times_of_networks():
    errors = [
        1e3 * seconds("v100_32", network(batch, dtype)) / milliseconds - 1
        for (network, dtype), row in PUBLISHED_MS.items()
        for batch, milliseconds in row.items()
    ]
    assert np.median(np.abs(errors)) < 0.08
    # VGG at batch 32 in fp32 ran 1.7 times as fast an image as at 16: Winograd, not priced.
    assert max(np.abs(errors)) < 0.30


def test_flops_of_resnet50():
    # He et al. (arXiv 1512.03385), table 1: 3.8e9 multiply-adds; v1.5 strides one layer later.
    assert sum(op.flops for op in resnet50(1, "fp16")) / 2 == pytest.approx(4.09e9, rel=0.01)


convolutions = st.builds(
    lambda batch, inward, outward, groups, size, taps, stride, dilation, padding: Convolution(
        *("c", batch, inward * groups, outward * groups, (size, size + 3), (taps, taps), "fp16"),
        stride=(stride, stride),
        padding=(padding, padding),
        dilation=(dilation, dilation),
        groups=groups,
    ),
    batch=st.integers(1, 64),
    inward=st.integers(1, 64).map(lambda channels: 8 * channels),
    outward=st.integers(1, 64).map(lambda channels: 8 * channels),
    groups=st.sampled_from([1, 2, 32]),
    size=st.integers(14, 64),
    taps=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
)


@given(convolutions, st.sampled_from(PASSES))
def test_every_pass_multiplies_as_often(op, pass_):
    m, n, k, batch = implicit_gemm(replace(op, pass_=pass_))
    done = 2 * m * n * k * batch
    # A strided input gradient's inner dimension is rounded up to a whole number.
    assert op.flops <= done < op.flops + (2 * m * n * batch if pass_ == "dgrad" else 1)


@given(convolutions, st.sampled_from(PASSES), st.sampled_from([False, True]))
def test_more_work_takes_longer(op, pass_, channels_last):
    op = replace(op, pass_=pass_, channels_last=channels_last)
    grown = [
        replace(op, batch=2 * op.batch),
        replace(op, out_channels=2 * op.out_channels),
        replace(op, in_channels=2 * op.in_channels),
    ]
    prices = price_kernels(GPUS["a100_80"], [op, *grown])
    assert (prices.seconds[1:] >= prices.seconds[0] * (1 - 1e-9)).all()
    assert ((prices.memory_bound >= 0) & (prices.memory_bound <= 1)).all()
    assert op.flops / prices.seconds[0] < GPUS["a100_80"].peak("fp16")


@pytest.mark.parametrize(("pass_", "layout"), [("fwd", "TN"), ("dgrad", "NN"), ("wgrad", "NT")])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "tf32", "fp32"])
def test_one_pixel_filters_are_matrix_products(pass_, layout, dtype):
    op = Convolution(*("c", 32, 256, 1024, (28, 28), (1, 1), dtype, pass_), channels_last=True)
    m, n, k, _ = implicit_gemm(op)
    product = Gemm("g", m, n, k, dtype, layout=layout)
    assert seconds("a100_80", [op]) == pytest.approx(seconds("a100_80", [product]), rel=1e-6)


def test_windows_are_read_from_memory_once():
    narrow = Convolution("c", 64, 64, 64, (112, 112), (1, 1), "fp16", channels_last=True)
    wide = replace(narrow, kernel=(3, 3), padding=(1, 1))
    shares = price_kernels(GPUS["a100_80"], [narrow, wide]).memory_bound
    times = price_kernels(GPUS["a100_80"], [narrow, wide]).seconds
    assert times[1] < 9 * times[0]
    assert shares[1] < shares[0]


def test_tensor_cores_transpose_channels_first():
    first = Convolution("c", 64, 128, 128, (56, 56), (3, 3), "fp16", padding=(1, 1))
    last = replace(first, channels_last=True)
    elements = 2 * first.batch * 128 * 56 * 56 + 128 * 128 * 9
    bandwidth = GPUS["a100_80"].memory_bandwidth_bytes_per_s
    difference = seconds("a100_80", [first]) - seconds("a100_80", [last])
    assert difference >= 2 * 2 * elements / bandwidth
    for either in (first, last):
        full = replace(either, dtype="fp32")
        assert seconds("a100_80", [full]) == seconds(
            "a100_80", [replace(full, channels_last=not full.channels_last)]
        )


def test_depthwise_is_memory_bound():
    op = Convolution(*("c", 256, 512, 512, (28, 28), (3, 3), "fp16"), padding=(1, 1), groups=512)
    price = price_kernels(GPUS["a100_80"], [op])
    moved = 2 * 2 * 256 * 512 * 28 * 28
    floor = moved / GPUS["a100_80"].memory_bandwidth_bytes_per_s
    assert floor < price.seconds[0] < 1.5 * floor
    assert price.memory_bound[0] > 0.7


def test_channels_are_padded_to_whole_loads():
    image = Convolution("c", 256, 3, 64, (224, 224), (7, 7), "fp16", "wgrad", (2, 2), (3, 3))
    padded = replace(image, in_channels=8)
    assert implicit_gemm(image, 8) == implicit_gemm(padded)
    assert math.prod(implicit_gemm(image)) * 2 == image.flops


def test_prices_are_estimates():
    price = price_kernels(GPUS["h100"], vgg16(8, "bf16"))
    assert set(price.evidence) == {list(Evidence).index(Evidence.ESTIMATED)}


def test_what_is_refused():
    op = Convolution("c", 8, 64, 64, (56, 56), (3, 3), "fp16")
    with pytest.raises(InputError, match="pass_"):
        price_kernels(GPUS["v100_32"], [replace(op, pass_="backward")])
    with pytest.raises(InputError, match="dtype"):
        price_kernels(GPUS["v100_32"], [replace(op, dtype="float16")])
    with pytest.raises(InputError):
        price_kernels(GPUS["v100_32"], [replace(op, dtype="tf32")])
