"""Emulated vendor kernels, called with the arguments of the vocabulary."""

import pytest

from tests.simulators.virtual_cluster.traces.lowering.tensors import op, t
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import FREE
from trainscout.simulators.virtual_cluster.traces.vocabulary import KERNELS


def call(name: str, *outputs: object, **arguments: object) -> Op:
    names = KERNELS[name].arguments
    assert set(arguments) <= set(names)
    return op(f"emulated.{name}.default", tuple(arguments.get(each) for each in names), *outputs)  # type: ignore[misc, arg-type]


def only(traced: Op) -> ir.Kernel:
    (kernel,) = lower(traced).kernels
    return kernel


@pytest.mark.parametrize(
    ("layout", "left", "right", "use", "expected"),
    [
        ("TN", t(4, 8, 64), t(16, 64), "forward", (32, 16, 64, "TN")),
        ("NN", t(32, 16), t(16, 64), "dgrad", (32, 64, 16, "NN")),
        ("NT", t(32, 16), t(32, 64), "wgrad", (16, 64, 32, "NT")),
        # On Hopper 8-bit operands are transposed copies, called TN.
        ("TN", t(16, 32, dtype="float8_e4m3fn"), t(64, 32), "wgrad", (16, 64, 32, "NT")),
    ],
)
def test_products(layout, left, right, use, expected) -> None:  # type: ignore[no-untyped-def]
    gemm = only(call("gemm", t(1), left=left, right=right, layout=layout, use=use, recipe=""))
    assert isinstance(gemm, ir.Gemm)
    assert (gemm.m, gemm.n, gemm.k, gemm.layout) == expected
    assert gemm.dtype == ("fp8" if left.dtype.startswith("float8") else "bf16")


def test_accumulated_weight_gradients() -> None:
    gemm = only(
        call(
            "gemm_into",
            left=t(32, 16),
            right=t(32, 64),
            out=t(16, 64, dtype="float32"),
            layout="NT",
            use="wgrad",
            accumulate=True,
            recipe="",
        )
    )
    assert gemm == ir.Gemm("gemm_into", 16, 64, 32, "bf16", layout="NT", accumulate=4)


def test_grouped_products() -> None:
    weights = tuple(t(16, 64) for _ in range(4))
    gradient = only(
        call(
            "grouped_gemm_into",
            left=(t(100, 16),),
            right=(t(100, 64),),
            out=weights,
            splits=(25, 25, 25, 25),
            layout="NT",
            use="wgrad",
            accumulate=True,
            one_kernel=True,
            recipe="",
        )
    )
    expected = ir.GroupedGemm("grouped_gemm_into", 4, 25, 16, 64, "bf16", "NT", 2, True)
    assert gradient == expected


def attention(**changes: object) -> Op:
    arguments: dict[str, object] = {
        "query": t(2048, 2, 32, 128),
        "key": t(2048, 2, 8, 128),
        "value": t(2048, 2, 8, 64),
        "layout": "sbhd",
        "mask": "causal",
        "window": (-1, -1),
        "sequences": 2,
        "max_q": 2048,
        "max_k": 2048,
        "kernel": "flash3",
    }
    return call("attention_fwd", t(1), **{**arguments, **changes})


def test_attention() -> None:
    assert only(attention()) == ir.Attention(
        "attention_fwd", 2, 32, 8, 2048, 2048, 128, 64, True, "fwd", "bf16", "flash"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # batch, tokens, keys, causal
        ({"layout": "bshd"}, (2048, 2, 2, True)),
        ({"mask": "none"}, (2, 2048, 2048, False)),
        ({"window": (511, 0)}, (2, 2048, 512, False)),
        (
            {"query": t(1024, 2, 32, 128), "mask": "causal_bottom_right"},
            (2, 1024, 2048 - 512, False),
        ),
        (
            {
                "layout": "thd",
                "query": t(4096, 32, 128),
                "key": t(4096, 8, 128),
                "value": t(4096, 8, 64),
                "max_q": 1024,
                "max_k": 1024,
            },
            (4, 1024, 1024, True),
        ),
    ],
)
def test_attention_layouts_and_masks(changes, expected) -> None:  # type: ignore[no-untyped-def]
    found = only(attention(**changes))
    assert isinstance(found, ir.Attention)
    assert (found.batch, found.seq_q, found.seq_k, found.causal) == expected


def test_memory_bound_kernels_keep_their_class() -> None:
    x, weight, rows = t(256, 1024), t(1024), t(256, dtype="float32")
    norm = call("rms_norm_fwd", x, rows, input=x, weight=weight, eps=1e-5)
    assert only(norm) == ir.Streaming("rms_norm_fwd", "norm_fwd", 4 * 256 * 1024 + 2048 + 1024, 1)
    assert lower(norm).rule == "vendor norm_fwd"


def test_unknown_kernels_and_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="no known emulated kernel"):
        lower(op("emulated.no_such_kernel.default", ()))
    with pytest.raises(InputError, match="kernel=flash9"):
        lower(attention(kernel="flash9"))
    with pytest.raises(InputError, match="is no tensor"):
        lower(attention(key=None))


def test_nothing_to_do_is_no_kernel() -> None:
    empty = call(
        "grouped_gemm_into",
        left=(t(0, 64),),
        right=(t(16, 64),),
        out=(t(0, 16),),
        splits=(0,),
        layout="TN",
        use="forward",
        accumulate=False,
        one_kernel=True,
    )
    assert lower(empty) is FREE
