"""Profiles of a real GPU are read, classed and put beside what was predicted."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.comparison import (
    ClassTime,
    busy,
    compare,
    measured_times,
)
from trainscout.simulators.virtual_cluster.traces.kernel_classes import (
    CLASSES,
    class_of_kernel,
    class_of_operation,
)
from trainscout.simulators.virtual_cluster.traces.kineto import CollectiveCall, read_kineto


def cpu_op(name: str, external: int, **args: object) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10.0, "dur": 3.0,
        "args": {"External id": external, **args},
    }  # fmt: skip


def device(
    name: str, ts: float, dur: float, stream: int = 7, cat: str = "kernel", **args: object
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": stream, **args},
    }  # fmt: skip


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas"
REDUCE_SCATTER = {
    "Collective name": "_reduce_scatter_base",
    "In msg nelems": 4096,
    "Out msg nelems": 512,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Description": "DATA_PARALLEL_GROUP",
    "Process Group Ranks": "[0, 8, 16, 24, 32, 40, 48, 56]",
}
PROFILE: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H800"}],
    "distributedInfo": {"backend": "nccl", "rank": 8, "world_size": 64},
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {
            "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1,
            "ts": 5.0, "dur": 100.0,
        },
        cpu_op(
            "aten::mm", 11,
            **{"Input Dims": [[2048, 12288], [12288, 4608]],
               "Input type": ["c10::BFloat16", "c10::BFloat16"]},
        ),
        cpu_op("aten::add_", 12, **{"Input Dims": [[8, 8], [8, 8], []]}),
        cpu_op("c10d::_reduce_scatter_base_", 13),
        {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
            "ts": 12.0, "dur": 1.0, "args": {"correlation": 501, "External id": 11},
        },
        device(GEMM, 1100.0, 200.0, correlation=501),
        device(
            "void at::native::vectorized_elementwise_kernel<4, ...>", 1000.5, 10.0,
            **{"External id": 12, "correlation": 502},
        ),
        device(
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            1250.0, 100.0, stream=21, **{"External id": 13}, **REDUCE_SCATTER,
        ),
        device("Memcpy HtoD (Pinned -> Device)", 1400.0, 5.0, cat="gpu_memcpy", bytes=4096),
    ],
}  # fmt: skip


def put(path: Path, content: object) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_kernels_know_their_class_and_launching_operation(tmp_path: Path, name: str) -> None:
    profile = read_kineto(put(tmp_path / name, PROFILE))
    assert (profile.gpu, profile.rank, profile.world_size) == ("NVIDIA H800", 8, 64)
    assert profile.steps == 1
    add, gemm, scatter, copy = profile.kernels
    assert (add.kernel_class, add.operation, add.start_s) == ("elementwise", "aten::add_", 0.0)
    assert add.shapes == ((8, 8), (8, 8), ())
    assert (gemm.kernel_class, gemm.operation) == ("gemm", "aten::mm")
    assert gemm.shapes == ((2048, 12288), (12288, 4608))
    assert gemm.recorded.dtypes == ("c10::BFloat16", "c10::BFloat16")
    assert gemm.start_s == pytest.approx(99.5e-6)
    assert gemm.duration_s == pytest.approx(200e-6)
    assert (scatter.kernel_class, scatter.stream) == ("collective", 21)
    assert scatter.collective == CollectiveCall(
        "_reduce_scatter_base", 8192, 1024, "BFloat16", "DATA_PARALLEL_GROUP", 8,
        (0, 8, 16, 24, 32, 40, 48, 56),
    )  # fmt: skip
    assert (copy.kernel_class, copy.bytes, copy.operation) == ("copy", 4096, None)


def test_time_is_summed_by_class_and_exposed_communication_found(tmp_path: Path) -> None:
    profile = read_kineto(put(tmp_path / "p.json", PROFILE))
    times = measured_times(profile)
    assert list(times) == [each for each in CLASSES if each in times]
    assert times["gemm"].seconds == pytest.approx(200e-6)
    assert {each: time.kernels for each, time in times.items()} == {
        "gemm": 1, "elementwise": 1, "copy": 1, "collective": 1,
    }  # fmt: skip
    shares = busy(profile.kernels)
    assert shares.computing_s == pytest.approx(215e-6)
    assert shares.communicating_s == pytest.approx(100e-6)
    # Half of the reduce-scatter runs beside the product.
    assert shares.exposed_s == pytest.approx(50e-6)


def test_a_profile_of_the_cpu_has_operations_that_kernels_can_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiler:
        torch.mm(torch.ones(64, 32), torch.ones(32, 16)).softmax(-1)
    profiler.export_chrome_trace(str(tmp_path / "cpu.json"))
    recorded = json.loads((tmp_path / "cpu.json").read_text())
    assert read_kineto(tmp_path / "cpu.json").kernels == ()
    external = {
        event["name"]: event["args"]["External id"]
        for event in recorded["traceEvents"]
        if event.get("cat") == "cpu_op"
    }
    recorded["traceEvents"] += [
        device("a_kernel", 1.0, 2.0, **{"External id": external["aten::mm"]}),
        device("b_kernel", 4.0, 2.0, **{"External id": external["aten::_softmax"]}),
    ]
    product, softmax = read_kineto(put(tmp_path / "gpu.json", recorded)).kernels
    assert (product.kernel_class, product.shapes) == ("gemm", ((64, 32), (32, 16)))
    assert product.recorded.dtypes == ("float", "float")
    assert softmax.kernel_class == "softmax"
    assert softmax.shapes[0] == (64, 16)


@pytest.mark.parametrize(
    ("kernel", "operation", "kernel_class"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", None, "point_to_point"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "record_param_comms", "collective"),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>", None, "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", None, "attention"),
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopB_NTN", None, "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16>", None, "gemm"),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32", "aten::cudnn_convolution", "convolution"),
        ("void transformer_engine::normalization::ln_fwd_tuned_kernel", None, "norm"),
        ("void multi_tensor_apply_kernel<AdamFunctor<...>>", None, "optimizer"),
        ("void at::native::unrolled_elementwise_kernel", "aten::copy_", "copy"),
        ("void at::native::unrolled_elementwise_kernel", "aten::mul", "elementwise"),
        ("void at::native::reduce_kernel<512, 1>", "aten::sum", "reduce"),
        ("triton_red_fused_mean_3", None, "reduce"),
        ("triton_poi_fused_add_1", None, "elementwise"),
        ("a_kernel_of_somebody", None, "other"),
    ],
)
def test_kernels_are_classed(kernel: str, operation: str | None, kernel_class: str) -> None:
    assert class_of_kernel(kernel, operation) == kernel_class
    assert kernel_class in CLASSES


@pytest.mark.parametrize(
    ("operation", "kernel_class"),
    [
        ("aten.addmm.default", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten._scaled_dot_product_flash_attention_backward.default", "attention"),
        ("higher_order.flex_attention", "attention"),
        ("aten.convolution_backward.default", "convolution"),
        ("aten.native_layer_norm_backward.default", "norm"),
        ("aten._foreach_add_.List", "optimizer"),
        ("aten.max_pool2d_with_indices.default", None),
        ("aten.normal_.default", None),
        ("emulated.gemm.default", "gemm"),
        ("emulated.attention_fwd.default", "attention"),
        ("emulated.rms_norm_bwd.default", "norm"),
        ("emulated.multi_tensor_adam.default", "optimizer"),
        ("emulated.unknown.default", None),
    ],
)
def test_operations_are_classed(operation: str, kernel_class: str | None) -> None:
    assert class_of_operation(operation) == kernel_class


def test_a_prediction_is_put_beside_it() -> None:
    predicted = {
        "other": ClassTime(0.5, 1),
        "elementwise": ClassTime(1.0, 1),
        "gemm": ClassTime(2.0, 1),
        "point_to_point": ClassTime(0.25, 1),
    }
    measured = {"gemm": ClassTime(8.0, 2), "norm": ClassTime(1.0, 4)}
    rows = {row.kernel_class: row for row in compare(measured, 2, predicted, 1)}
    assert list(rows) == ["gemm", "norm", "elementwise", "point_to_point", "other"]
    assert (rows["gemm"].measured_s, rows["gemm"].error) == (4.0, -0.5)
    assert rows["norm"].error == -1.0
    assert rows["elementwise"].error is None
    with pytest.raises(InputError, match="measured_steps=0"):
        compare(measured, 0, predicted, 1)


BAD = {
    "no list of traceEvents": {"events": []},
    "'k' at 1.0: dur is None": {"traceEvents": [device("k", 1.0, 1.0) | {"dur": None}]},
    "dur is -1.0, below 0": {"traceEvents": [device("k", 1.0, -1.0)]},
    "ts is 'now'": {"traceEvents": [device("k", "now", 1.0)]},  # type: ignore[arg-type]
    "has no name": {"traceEvents": [device(None, 1.0, 1.0)]},  # type: ignore[arg-type]
    "args is no object": {"traceEvents": [device("k", 1.0, 1.0) | {"args": 3}]},
    "dtype 'Odd' is unknown": {
        "traceEvents": [device("nccl", 1.0, 1.0, **(REDUCE_SCATTER | {"dtype": "Odd"}))]  # type: ignore[arg-type]
    },
    "Process Group Ranks is 'all'": {
        "traceEvents": [
            device("nccl", 1.0, 1.0, **(REDUCE_SCATTER | {"Process Group Ranks": "all"}))  # type: ignore[arg-type]
        ]
    },
}


@pytest.mark.parametrize("problem", BAD)
def test_what_is_no_profile_is_refused(tmp_path: Path, problem: str) -> None:
    path = put(tmp_path / "p.json", BAD[problem])
    with pytest.raises(InputError) as refused:
        read_kineto(path)
    assert problem in str(refused.value)
    assert str(path) in str(refused.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json.gz"
    with pytest.raises(InputError, match="cannot be read"):
        read_kineto(path)
    path.write_bytes(gzip.compress(json.dumps(PROFILE).encode())[:-20])
    with pytest.raises(InputError, match="cut short"):
        read_kineto(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_kineto(path)


HOSTILE = {
    "correlation": ({"correlation": []}, {}, True),
    "dtype": ({"Collective name": "a", "In msg nelems": 1, "Out msg nelems": 1,
               "Group size": 2, "dtype": []}, {}, False),
    "ranks": ({"Collective name": "a", "In msg nelems": 1, "Out msg nelems": 1, "Group size": 2,
               "dtype": "Float", "Process Group Ranks": "[" * 90_000}, {}, False),
    "huge": ({}, {"ts": 10**400}, False),
    "category": ({}, {"cat": ["kernel"]}, True),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_lists_and_huge_numbers_where_scalars_belong(kind, tmp_path):
    args, fields, read = HOSTILE[kind]
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": args, **fields}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"traceEvents": [event], "distributedInfo": {"rank": []}}))
    if read:
        read_kineto(path)
    else:
        with pytest.raises(InputError, match="kineto="):
            read_kineto(path)


def test_reading_takes_no_more_memory_than_there_is_to_read(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text('{"traceEvents": []}')
    tracemalloc.start()
    read_kineto(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 << 20
