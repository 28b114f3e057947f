"""Names and sizes of emulated kernels, read without torch."""

from __future__ import annotations

import math

import pytest

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import (
    KERNELS,
    arguments,
    kernel_of,
    launches,
    moved_bytes,
    tensor_bytes,
    tensors,
)

STREAMING = {
    kind.strip().split(" ")[0]
    for kind in (Streaming.__doc__ or "").partition("is its class:")[2].split(".")[0].split(",")
}


def spec(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(dtype, shape, 1)


def op(name: str, *inputs: object, outputs: tuple[TensorSpec, ...] = ()) -> Op:
    return Op(f"emulated.{name}.default", inputs, outputs, 0)  # type: ignore[arg-type]


def test_arguments_by_name() -> None:
    gemm = op("gemm", spec(8, 4), spec(16, 4), "TN", "forward", "bfloat16", None, "")
    assert arguments(gemm)["use"] == "forward"
    assert arguments(gemm)["bias"] is None
    assert arguments(gemm)["right"] == spec(16, 4)


def test_every_kernel_stands_for_something_that_can_be_priced() -> None:
    products = {"gemm", "grouped_gemm", "attention_fwd", "attention_bwd"}
    assert {kernel.stands_for for kernel in KERNELS.values()} <= products | STREAMING
    assert {"norm_fwd", "cast", "optimizer", "permute"} <= STREAMING


def test_other_operations_are_no_kernels() -> None:
    add = Op("aten.add.Tensor", (), (), 0)
    for use in (kernel_of, arguments, moved_bytes):
        with pytest.raises(InputError, match=r"aten\.add"):
            use(add)


def test_unknown_kernels_and_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="layer_norm_fwd"):
        kernel_of(op("layer_norm_fw"))
    with pytest.raises(InputError, match="layout"):
        arguments(op("gemm", spec(8, 4)))
    with pytest.raises(InputError, match="float4"):
        tensor_bytes(spec(2, dtype="float4"))


def test_bytes_are_read_once_and_written_once() -> None:
    rows = spec(8, 256)
    norm = op(
        "rms_norm_fwd",
        rows,
        spec(256),
        1e-5,
        outputs=(rows, spec(8, dtype="float32")),
    )
    assert moved_bytes(norm) == 2 * (8 * 256 * 2) + 256 * 2 + 8 * 4
    # In place: read and written.
    softmax = op("fused_softmax_bwd", rows, rows, 1.0, "causal")
    assert moved_bytes(softmax) == 3 * 8 * 256 * 2
    # What is only written is not read.
    scale = op("multi_tensor_scale", (rows,), (rows,), 0.5)
    assert moved_bytes(scale) == 2 * 8 * 256 * 2


def test_adam_moves_every_state() -> None:
    state = (spec(1000, dtype="float32"),)
    adam = op("multi_tensor_adam", (spec(1000),), state, state, state, ())
    assert moved_bytes(adam) == 1000 * (2 + 3 * 8)


@pytest.mark.parametrize(
    ("elements", "count", "expected"),
    [
        (1000, 1, 1),
        # 320 chunks of 65,536 elements a launch.
        (320 * 65536, 1, 1),
        (320 * 65536 + 1, 1, 2),
        # 36 tensors a launch where four lists are walked.
        (10, 36, 1),
        (10, 37, 2),
    ],
)
def test_launches_of_multi_tensor_kernels(elements: int, count: int, expected: int) -> None:
    lists = [tuple(spec(elements, dtype="float32") for _ in range(count))] * 4
    assert launches(op("multi_tensor_adam", *lists, ())) == expected


def test_norms_add_up_partial_sums() -> None:
    given = (spec(10, dtype="float32"),)
    assert launches(op("multi_tensor_l2norm", given, False)) == 2
    assert launches(op("multi_tensor_l2norm", (), False)) == 0
    assert launches(op("layer_norm_bwd")) == 2


def test_tensors_of_lists() -> None:
    assert [each.shape for each in tensors((spec(1), (spec(2), 3), None))] == [(1,), (2,)]
    assert math.prod(spec(2, 3).shape) * 2 == tensor_bytes(spec(2, 3))
