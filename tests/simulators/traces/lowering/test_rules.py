"""Operations to kernels: shapes and bytes by hand, invariants by property."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.errors import InputError
from simulators.traces.events import Op, TensorSpec
from simulators.traces.lowering import FREE, lower
from simulators.traces.lowering.tensors import touched_bytes
from simulators.workload.ir import Attention, Convolution, Gemm, GroupedGemm, Kernel, Streaming
from tests.simulators.traces.lowering.tensors import op, t, transposed


def only(lowered_op: Op) -> Kernel:
    kernels = lower(lowered_op).kernels
    assert len(kernels) == 1
    return kernels[0]


def moved(lowered_op: Op) -> int:
    kernels = lower(lowered_op).kernels
    assert all(isinstance(kernel, Streaming) for kernel in kernels)
    return sum(kernel.bytes for kernel in kernels if isinstance(kernel, Streaming))


X, W = t(2048, 12288), t(4608, 12288)


@pytest.mark.parametrize(
    ("traced", "gemm"),
    [
        (
            op("aten.mm.default", (X, transposed(W)), t(2048, 4608)),
            Gemm("mm", 2048, 4608, 12288, "bf16", layout="TN"),
        ),
        (
            op("aten.mm.default", (t(2048, 4608), W), X),
            Gemm("mm", 2048, 12288, 4608, "bf16", layout="NN"),
        ),
        (
            op("aten.mm.default", (transposed(t(2048, 4608)), X), W),
            Gemm("mm", 4608, 12288, 2048, "bf16", layout="NT"),
        ),
        (
            op("aten.addmm.default", (t(4608), X, transposed(W)), t(2048, 4608)),
            Gemm("addmm", 2048, 4608, 12288, "bf16", layout="TN"),
        ),
        (
            op(
                "aten.addmm_.default",
                (t(4608, 12288, dtype="float32"), transposed(t(2048, 4608)), X),
                t(4608, 12288, dtype="float32"),
            ),
            Gemm("addmm_", 4608, 12288, 2048, "bf16", layout="NT", accumulate=True),
        ),
        (
            op("aten.bmm.default", (t(12, 2048, 128), transposed(t(12, 2048, 128))), t(12, 1, 1)),
            Gemm("bmm", 2048, 2048, 128, "bf16", batch=12, layout="TN"),
        ),
        (
            op("aten.baddbmm.default", (t(1), t(12, 64, 32), t(12, 32, 16)), t(12, 64, 16)),
            Gemm("baddbmm", 64, 16, 32, "bf16", batch=12, layout="NN"),
        ),
        (
            op("aten.linear.default", (t(4, 8, 32), t(16, 32), t(16)), t(4, 8, 16)),
            Gemm("linear", 32, 16, 32, "bf16"),
        ),
        (
            op("aten.matmul.default", (t(4, 8, 32), t(32, 16)), t(4, 8, 16)),
            Gemm("matmul", 32, 16, 32, "bf16", layout="NN"),
        ),
        (
            op("aten.matmul.default", (t(4, 1, 8, 32), t(5, 32, 16)), t(4, 5, 8, 16)),
            Gemm("matmul", 8, 16, 32, "bf16", batch=20, layout="NN"),
        ),
        (
            op("aten.mm.default", (t(8, 8, dtype="float32"),) * 2, t(8, 8, dtype="float32")),
            Gemm("mm", 8, 8, 8, "fp32", layout="NN"),
        ),
        (
            op(
                "aten._scaled_mm.default",
                (
                    t(64, 32, dtype="float8_e4m3fn"),
                    transposed(t(16, 32, dtype="float8_e4m3fn")),
                    t(1, dtype="float32"),
                    t(1, dtype="float32"),
                    None,
                    None,
                    "bfloat16",
                    True,
                ),
                t(64, 16),
            ),
            Gemm("_scaled_mm", 64, 16, 32, "fp8", layout="TN"),
        ),
    ],
)
def test_products(traced: Op, gemm: Gemm) -> None:
    assert only(traced) == gemm
    assert lower(traced).rule == "gemm"


def test_sums_outside_the_tensor_cores_are_gradients() -> None:
    arguments = (t(64, 32, dtype="float8_e5m2"), t(32, 16, dtype="float8_e4m3fn"), t(1), t(1))
    gemm = only(op("aten._scaled_mm.default", arguments, t(64, 16)))
    assert isinstance(gemm, Gemm)
    assert gemm.layout == "NN"


@pytest.mark.parametrize(
    ("left", "right", "out", "kernel"),
    [
        (
            t(1000, 64),
            transposed(t(8, 32, 64)),
            t(1000, 32),
            GroupedGemm("_grouped_mm", 8, 125, 32, 64, "bf16", "TN", one_kernel=True),
        ),
        (
            t(64, 1001),
            t(1001, 32),
            t(8, 64, 32),
            GroupedGemm("_grouped_mm", 8, 126, 64, 32, "bf16", "NT", one_kernel=True),
        ),
        (
            t(8, 10, 64),
            t(8, 64, 32),
            t(8, 10, 32),
            Gemm("_grouped_mm", 10, 32, 64, "bf16", batch=8, layout="NN"),
        ),
    ],
)
def test_grouped_products(left: TensorSpec, right: TensorSpec, out: TensorSpec, kernel: Kernel):  # type: ignore[no-untyped-def]
    offsets = t(8, dtype="int32")
    assert only(op("aten._grouped_mm.default", (left, right, offsets), out)) == kernel


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"aten\.mm\.default.*no matrix product"):
        lower(op("aten.mm.default", (t(3, 4), t(5, 6)), t(3, 6)))
    with pytest.raises(InputError, match="is no tensor"):
        lower(op("aten.mm.default", (t(3, 4), 2), t(3, 6)))


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
            "_flash_attention_forward",
            (t(2, 64, 8, 16), t(2, 64, 4, 16), t(2, 64, 4, 16), None, None, 64, 64, 0.0, True),
            Attention("", 2, 8, 4, 64, 64, 16, 16, True, "fwd", "bf16", "flash2"),
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


def _fields(kernel: Attention) -> dict[str, object]:
    return {name: getattr(kernel, name) for name in kernel.__slots__}


def _conv(name: str = "convolution") -> Op:
    x, weight = t(8, 3, 224, 224), t(64, 3, 7, 7)
    out = t(8, 64, 112, 112)
    settings = ((2, 2), (3, 3), (1, 1), False, (0, 0), 1)
    if name == "convolution":
        return op("aten.convolution.default", (x, weight, t(64), *settings), out)
    return op(
        "aten.convolution_backward.default",
        (out, x, weight, (64,), *settings, (False, True, True)),
        t(0),
        weight,
        t(64),
    )


def test_convolutions() -> None:
    convolution, bias = lower(_conv()).kernels
    assert isinstance(convolution, Convolution)
    assert convolution.out_size == (112, 112)
    assert convolution.flops == 2 * 8 * 64 * 112 * 112 * 3 * 49
    assert bias == Streaming("bias_add", "elementwise", 2 * 8 * 64 * 112 * 112 * 2)
    weight_gradient, bias_gradient = lower(_conv("backward")).kernels
    assert isinstance(weight_gradient, Convolution)
    assert weight_gradient.pass_ == "wgrad"
    assert weight_gradient.flops == convolution.flops
    assert bias_gradient == Streaming("bias_grad", "reduce", 8 * 64 * 112 * 112 * 2)


def test_transposed_convolutions_are_input_gradients() -> None:
    x, weight, out = t(8, 64, 16, 16), t(64, 32, 4, 4), t(8, 32, 32, 32)
    settings = ((2, 2), (1, 1), (1, 1), True, (0, 0), 1)
    kernel = only(op("aten.convolution.default", (x, weight, None, *settings), out))
    assert isinstance(kernel, Convolution)
    assert (kernel.pass_, kernel.in_size, kernel.out_size) == ("dgrad", (32, 32), (16, 16))
    assert (kernel.in_channels, kernel.out_channels) == (32, 64)


def test_fp32_convolutions_round_and_remember_the_memory_format() -> None:
    x = t(8, 3, 8, 8, dtype="float32", strides=(192, 1, 24, 3))
    weight = t(4, 3, 1, 1, dtype="float32")
    settings = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    kernel = only(op("aten.convolution.default", (x, weight, None, *settings), t(8, 4, 8, 8)))
    assert isinstance(kernel, Convolution)
    assert (kernel.dtype, kernel.channels_last) == ("tf32", True)


BIG = t(256, 1, 12288)
HALF, SINGLE = 256 * 12288 * 2, 256 * 12288 * 4


@pytest.mark.parametrize(
    ("traced", "kind", "size"),
    [
        (op("aten.add.Tensor", (BIG, BIG), BIG), "elementwise", 3 * HALF),
        (op("aten.add.Tensor", (BIG, t(12288)), BIG), "elementwise", 2 * HALF + 12288 * 2),
        (op("aten.add_.Tensor", (BIG, BIG), BIG), "elementwise", 3 * HALF),
        (op("aten.mul_.Scalar", (BIG, 2.0)), "elementwise", 2 * HALF),
        (op("aten.gelu_backward.default", (BIG, BIG), BIG), "elementwise", 3 * HALF),
        (op("aten.add.out", (BIG, BIG, ("out", BIG))), "elementwise", 3 * HALF),
        (op("aten.zero_.default", (BIG,), BIG), "elementwise", HALF),
        (op("aten.zeros.default", ((256, 12288),), BIG), "elementwise", HALF),
        (
            op("aten._to_copy.default", (BIG,), t(256, 1, 12288, dtype="float32")),
            "cast",
            HALF + SINGLE,
        ),
        (op("aten.clone.default", (BIG,), BIG), "memcpy", 2 * HALF),
        (op("aten.copy_.default", (BIG, BIG), BIG), "memcpy", 2 * HALF),
        (
            op("aten.clone.default", (transposed(t(512, 1024)),), t(1024, 512)),
            "permute",
            4 * 512 * 1024,
        ),
        (op("aten.cat.default", ((BIG, BIG), 0), t(512, 1, 12288)), "memcpy", 4 * HALF),
        (
            op("aten.sum.dim_IntList", (BIG, (0, 1)), t(1, 1, 12288)),
            "reduce",
            HALF + 12288 * 2,
        ),
        (op("aten._softmax.default", (BIG, -1, False), BIG), "softmax_fwd", 2 * HALF),
        (
            op("aten._softmax_backward_data.default", (BIG, BIG, -1, "bfloat16"), BIG),
            "softmax_bwd",
            3 * HALF,
        ),
        (
            op("aten.native_dropout.default", (BIG, 0.1, True), BIG, t(256, 12288, dtype="bool")),
            "dropout",
            2 * HALF + HALF // 2,
        ),
        (
            op(
                "aten.native_layer_norm.default",
                (BIG, (12288,), t(12288), t(12288), 1e-5),
                BIG,
                t(256, 1, dtype="float32"),
                t(256, 1, dtype="float32"),
            ),
            "norm_fwd_plain",
            2 * HALF + 2 * 12288 * 2 + 2 * 256 * 4,
        ),
        (
            op(
                "aten.native_batch_norm.default",
                (BIG, None, None, None, None, True, 0.1, 1e-5),
                BIG,
            ),
            "elementwise",
            3 * HALF,
        ),
        (
            op("aten.native_batch_norm.default", (BIG, None, None, None, None, False), BIG),
            "elementwise",
            2 * HALF,
        ),
        (
            op("aten.embedding.default", (t(50304, 64), t(4, 8, dtype="int64")), t(4, 8, 64)),
            "embedding",
            2 * 4 * 8 * 64 * 2 + 4 * 8 * 8,
        ),
        (
            op(
                "aten.embedding_dense_backward.default",
                (t(4, 8, 64), t(4, 8, dtype="int64"), 100, -1, False),
                t(100, 64),
            ),
            "embedding_bwd",
            4 * 8 * 64 * 2 + 4 * 8 * 8 + 2 * 100 * 64 * 2,
        ),
        (
            op("aten.index_select.default", (t(1000, 64), 0, t(10, dtype="int64")), t(10, 64)),
            "permute",
            10 * 8 + 2 * 10 * 64 * 2,
        ),
        (
            op(
                "aten.index_put_.default",
                (t(1000, 64), (t(10, dtype="int64"),), t(10, 64), True),
                t(1000, 64),
            ),
            "permute",
            10 * 8 + 3 * 10 * 64 * 2,
        ),
        (
            op(
                "aten.scatter.value",
                (t(64, 8, dtype="bool"), 1, t(64, 2, dtype="int64"), 1),
                t(64, 8, dtype="bool"),
            ),
            "memcpy",
            2 * 64 * 8 + 64 * 2 * 8 + 64 * 2,
        ),
        (
            op("fsdp.split_with_sizes_copy.default", (t(16, 1000), (600, 400), 1)),
            "memcpy",
            2 * 16000 * 2,
        ),
        (
            op(
                "fsdp.all_gather_copy_in.default",
                ((t(600), t(400)), t(16000), (600, 400), 1000, 3),
            ),
            "memcpy",
            2 * 1000 * 2,
        ),
        (
            op(
                "fsdp.chunk_cat.default",
                ((t(600), t(400)), 0, 4, ("out", t(4, 250, dtype="float32"))),
            ),
            "cast",
            1000 * 6,
        ),
    ],
)
def test_memory_bound_operations(traced: Op, kind: str, size: int) -> None:
    kernels = lower(traced).kernels
    first = kernels[0]
    assert isinstance(first, Streaming)
    assert first.kind == kind
    assert moved(traced) == size
    assert not lower(traced).estimated


def test_broadcast_and_strided_tensors_move_what_they_touch() -> None:
    # An expanded mask is read once, a column costs a sector for every element.
    assert touched_bytes(t(64, 1024, strides=(0, 1))) == 2048
    assert touched_bytes(t(64, 1024, strides=(1024, 1))) == 64 * 2048
    assert touched_bytes(t(64, 1, strides=(1024, 1))) == 64 * 32
    # Every other element: the whole stretch between the first and the last.
    assert touched_bytes(t(1000, strides=(2,))) == 1999 * 2
    assert touched_bytes(t(0, 4, strides=(4, 1))) == 0
    assert touched_bytes(t(8, storage=None)) == 0


def test_crossing_the_bus_is_no_kernel() -> None:
    host = t(1000, dtype="int64", storage=None)
    to_device = lower(op("aten._to_copy.default", (host,), t(1000, dtype="int64")))
    assert (to_device.kernels, to_device.transfer_bytes) == ((), 8000)
    back = lower(op("aten.copy_.default", (host, t(1000, dtype="int64")), host))
    assert (back.kernels, back.transfer_bytes) == ((), 8000)
    assert lower(op("aten.add.Tensor", (host, host), host)) is FREE


@pytest.mark.parametrize(
    "name",
    [
        "aten.view.default",
        "aten.t.default",
        "aten.empty.memory_format",
        "aten._local_scalar_dense.default",
        "c10d.allreduce_.default",
        "aten.detach.default",
    ],
)
def test_views_and_allocations_cost_nothing(name: str) -> None:
    assert lower(op(name, (BIG,), BIG)) is FREE


def test_what_is_not_known_is_estimated_by_its_bytes() -> None:
    for name in ("mylib.mystery.default", "aten._ctc_loss.default"):
        lowered = lower(op(name, (BIG, 3, "text", None), BIG))
        assert lowered.estimated
        assert lowered.rule == "unknown"
        assert lowered.kernels[0].bytes == 2 * HALF  # type: ignore[union-attr]


def test_lists_are_one_call_of_several_launches() -> None:
    parameters = tuple(t(65536 * 4, dtype="float32") for _ in range(100))
    steps = tuple(t(dtype="float32") for _ in range(100))
    adam = only(
        op(
            "aten._fused_adamw_.default",
            (parameters, parameters, parameters, parameters, (), steps, 1e-3),
        )
    )
    assert isinstance(adam, Streaming)
    one = 65536 * 4 * 4 * 100
    # Four lists read, three of them written; the steps are read.
    assert (adam.kind, adam.bytes) == ("optimizer", 7 * one + 400)
    # 36 tensors a launch with four lists.
    assert adam.launches == 3
    scaled = only(op("aten._foreach_mul_.Scalar", (parameters, 2.0)))
    assert isinstance(scaled, Streaming)
    assert (scaled.bytes, scaled.launches) == (2 * one, 2)
    narrow = tuple(t(65536 * 4) for _ in range(100))
    copied = only(op("aten._foreach_copy_.default", (narrow, parameters)))
    assert isinstance(copied, Streaming)
    assert (copied.kind, copied.bytes) == ("cast", one + one // 2)
    norms = op("aten._foreach_norm.Scalar", (parameters, 2), *(t(dtype="float32"),) * 100)
    assert only(norms) == Streaming("_foreach_norm", "reduce", one + 400, 3)


def test_sorts_count_their_passes() -> None:
    keys = t(1000, dtype="int64")
    lowered = lower(op("aten.sort.default", (keys,), keys, keys))
    assert lowered.estimated
    assert lowered.kernels == (Streaming("sort", "permute", 8 * 2 * 1000 * 16 + 8000, 9),)


_SHAPES = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)
_DTYPES = st.sampled_from(["bfloat16", "float32", "bool", "int64"])


@given(_SHAPES, _DTYPES, st.integers(1, 4))
def test_elementwise_bytes_are_those_of_its_tensors(
    shape: tuple[int, ...], dtype: str, inputs: int
) -> None:
    spec = t(*shape, dtype=dtype)
    size = {"bfloat16": 2, "float32": 4, "bool": 1, "int64": 8}[dtype] * math.prod(shape)
    traced = op("aten.where.self", (spec,) * inputs, spec)
    assert moved(traced) == (inputs + 1) * size


@given(st.tuples(*[st.integers(1, 64)] * 3), st.integers(0, 2), st.integers(1, 8))
def test_products_count_their_flops(size: tuple[int, int, int], which: int, factor: int) -> None:
    m, n, k = size

    def flops(m: int, n: int, k: int) -> int:
        gemm = only(op("aten.mm.default", (t(m, k), t(k, n)), t(m, n)))
        assert isinstance(gemm, Gemm)
        return 2 * gemm.batch * gemm.m * gemm.n * gemm.k

    grown = [m, n, k]
    grown[which] *= factor
    assert flops(m, n, k) == 2 * m * n * k
    assert flops(*grown) == factor * flops(m, n, k)


@given(_SHAPES)
def test_storages_do_not_matter(shape: tuple[int, ...]) -> None:
    first = op("aten.add.Tensor", (t(*shape, storage=1), t(*shape, storage=2)), t(*shape))
    second = op("aten.add.Tensor", (t(*shape, storage=7), t(*shape, storage=8)), t(*shape))
    assert lower(first) is lower(second)
