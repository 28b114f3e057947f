"""Matrix products as GEMMs, shapes by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.traces.lowering.tensors import only, op, t, transposed
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, GroupedGemm, Kernel
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

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
            Gemm("addmm_", 4608, 12288, 2048, "bf16", layout="NT", accumulate=4),
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


@pytest.mark.parametrize(
    ("name", "inputs", "made", "gemm", "times"),
    [
        ("_euclidean_dist", (t(8, 6), t(4, 6)), t(8, 4), (8, 4, 8), 1),
        ("linalg_matrix_exp", (t(2, 8, 8),), t(2, 8, 8), (8, 8, 8), 5),
        ("linalg_solve_triangular", (t(2, 8, 8), t(2, 8, 6)), t(2, 8, 6), (8, 6, 4), 1),
    ],
)
def test_what_is_computed_by_products_is_priced_by_them(
    name: str, inputs: tuple[TensorSpec, ...], made: TensorSpec, gemm: tuple[int, ...], times: int
) -> None:
    kernels = lower(op(f"aten.{name}.default", inputs, made)).kernels
    products = [each for each in kernels if isinstance(each, Gemm)]
    assert [(each.m, each.n, each.k) for each in products] == [gemm] * times
    assert {each.batch for each in products} == {len(made.shape) - 1}


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
