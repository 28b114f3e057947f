"""Operations bound by memory: bytes by hand, invariants by property."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.traces.lowering.tensors import moved, only, op, t, transposed
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import FREE, touched_bytes
from trainscout.simulators.virtual_cluster.traces.vocabulary import PAGEABLE

BIG = t(256, 1, 12288)
LAST = t(2, 64, 8, 8, dtype="float16", strides=(4096, 1, 512, 64))
HALF, SINGLE = 256 * 12288 * 2, 256 * 12288 * 4


@pytest.mark.parametrize(
    ("traced", "kind", "size"),
    [
        (op("aten.add.Tensor", (BIG, BIG), BIG), "elementwise", 3 * HALF),
        # One by one, because places differ: a bias that is broadcast, a tensor read by columns.
        (op("aten.add.Tensor", (BIG, t(12288)), BIG), "elementwise", 10 * HALF // 2),
        (
            op("aten.neg.default", (transposed(t(512, 1024)),), t(1024, 512)),
            "elementwise",
            10 * 512 * 1024,
        ),
        (
            op("aten.max_pool2d.default", (t(8, 64, 56, 56),), t(8, 64, 28, 28)),
            "elementwise",
            8 * 64 * 2 * (56 * 56 + 28 * 28),
        ),
        (op("aten.add_.Tensor", (BIG, BIG), BIG), "elementwise", 3 * HALF),
        (op("aten.mul_.Scalar", (BIG, 2.0)), "elementwise", 2 * HALF),
        (
            op("aten._native_batch_norm_legit_no_training.default", (BIG, None, None), BIG),
            "elementwise",
            2 * HALF,
        ),
        (op("aten.gelu_backward.default", (BIG, BIG), BIG), "activation", 3 * HALF),
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
        (op("aten.sum.dim_IntList", (BIG, (0, 1)), t(1, 1, 12288)), "reduce", HALF + 12288 * 2),
        (op("aten._softmax.default", (BIG, -1, False), BIG), "softmax_fwd", 2 * HALF),
        (
            op(
                "aten._fused_rms_norm_backward.default",
                (BIG, BIG, (12288,), BIG, None, (True, False)),
                BIG,
            ),
            "norm_fwd_plain",
            4 * HALF,
        ),
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
            # Channels last: the statistics are a slow kernel, whose pass counts for several.
            op(
                "aten.native_batch_norm.default",
                (t(2, 64, 8, 8, strides=(4096, 1, 512, 64)), None, None, None, None, True),
                t(2, 64, 8, 8, strides=(4096, 1, 512, 64)),
            ),
            "elementwise",
            round((4.75 + 1 + 1) * 2 * 64 * 64 * 2),
        ),
        (
            # In fp16 cuDNN's kernels run, which are not slow.
            op(
                "aten.native_batch_norm.default",
                (LAST, None, None, None, None, True),
                LAST,
            ),
            "elementwise",
            3 * 2 * 64 * 64 * 2,
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
                "aten._embedding_bag.default",
                (t(50304, 64), t(32, dtype="int64"), t(4, dtype="int64")),
                t(4, 64),
                t(32, dtype="int64"),
            ),
            "embedding",
            (32 + 4) * 8 + 32 * 64 * 2 + 4 * 64 * 2 + 32 * 8,
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
    pinned, pageable = (
        lower(op("aten._to_copy.default", (host, *more), t(1000, dtype="int64")))
        for more in ((), ((PAGEABLE, True),))
    )
    assert (pinned.pageable_bytes, pageable.pageable_bytes) == (0, 8000)


@pytest.mark.parametrize(
    "name",
    [
        "aten.view.default",
        "aten.t.default",
        "aten.empty.memory_format",
        "aten._local_scalar_dense.default",
        "c10d.allreduce_.default",
        "aten.detach.default",
        "aten._has_same_storage_numel.default",
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


@given(_SHAPES)
def test_storages_do_not_matter(shape: tuple[int, ...]) -> None:
    first = op("aten.add.Tensor", (t(*shape, storage=1), t(*shape, storage=2)), t(*shape))
    second = op("aten.add.Tensor", (t(*shape, storage=7), t(*shape, storage=8)), t(*shape))
    assert lower(first) is lower(second)
