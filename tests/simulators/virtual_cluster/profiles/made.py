"""Profiles made from a prediction: what PyTorch's profiler would have written of that step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.profiles.predicted import (
    PredictedOperation,
    class_of,
    predicted_operations,
)

BF16 = "c10::BFloat16"
# A kernel's name for each class, as CUDA's profiler shows them.
KERNELS = {
    "gemm": "nvjet_tst_128x256_64x4_h_bz_coopA_TNT",
    "attention": "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>",
    "optimizer": "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>",
    "norm": "rms_norm_kernel",
}
ELEMENTWISE = "vectorized_elementwise_kernel<4, at::native::BinaryFunctor::{lambda()#1}>"
COMPUTE, COMMUNICATION = 7, 20
LAUNCH_US = 4.0


def small_job(world: int = 1, framework: str = "huggingface", **recipe: Any) -> Job:
    """Two layers of a small Llama on H100s of one node."""
    catalogue = load_catalogue()
    model = replace(
        catalogue.models["llama3_8b"], name="small", num_layers=2, sequence_length=1024
    )
    cluster = Cluster("here", 1, world, 8, 400.0, "infiniband", "")
    chosen = Recipe(**{"micro_batch": 1, **recipe})
    training = Training(world // (chosen.tp * chosen.pp) * chosen.micro_batch, tokens=1e9)
    made_by = catalogue.frameworks[framework]
    return Job(model, catalogue.gpus["h100"], cluster, training, chosen, made_by)


def predicted(job: Job, stage: int = 0) -> tuple[PredictedOperation, ...]:
    return predicted_operations(step_program(job), stage)


class Recorder:
    """Writes events one launch after another; the device runs ``behind_us`` behind the host."""

    def __init__(
        self, rank: int | None = None, world: int = 1, gpu: str = "NVIDIA H100 80GB HBM3"
    ):
        self.events: list[dict[str, Any]] = []
        self.number = self.call = 0
        self.host_us = self.device_us = 1000.0
        self.top: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": gpu}]}
        if rank is not None:
            self.top["distributedInfo"] = {"rank": rank, "world_size": world}

    def launch(
        self, kernel: str, seconds: float, operation: str = "", stream: int = COMPUTE, **args: Any
    ) -> None:
        """One operation with one kernel; ``args`` are the operation's, or an NCCL kernel's."""
        self.number += 1
        self.call = self.number
        if operation:
            ids = {"External id": self.call}
            self._event("cpu_op", operation, self.host_us, 3.0, 1, ids | args)
        self.again(kernel, seconds, stream, **(args if "Collective name" in args else {}))

    def again(self, kernel: str, seconds: float, stream: int = COMPUTE, **more: Any) -> None:
        """One more kernel of the operation that was launched last."""
        self.number += 1
        ids = {"External id": self.call, "correlation": self.number}
        self._event("cuda_runtime", "cudaLaunchKernel", self.host_us + 1, 2.0, 1, ids)
        start_us = max(self.device_us, self.host_us + LAUNCH_US)
        device = {"correlation": self.number, "stream": stream, "device": 0, **more}
        self._event("kernel", kernel, start_us, seconds * 1e6, stream, device)
        self.host_us += LAUNCH_US
        self.device_us = start_us + seconds * 1e6

    def wait(self, us: float) -> None:
        """The host waits for the device for the last ``us`` of its time."""
        self._event("cuda_runtime", "cudaStreamSynchronize", self.host_us - us, us, 1, {})

    def mark(self, number: int, start_us: float) -> None:
        name = f"ProfilerStep#{number}"
        self._event("user_annotation", name, start_us, self.host_us - start_us, 1, {})

    def _event(
        self, cat: str, name: str, ts: float, dur: float, tid: int, args: dict[str, Any]
    ) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur,
             "args": args}
        )  # fmt: skip

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.top | {"traceEvents": self.events}), encoding="utf-8")
        return path


def record(
    recorder: Recorder,
    operations: Iterable[PredictedOperation],
    factor: Callable[[str], float] = lambda _: 1.0,
    shapes: bool = True,
) -> None:
    """Launch predicted operations, each ``factor`` of its class longer than predicted."""
    for each in operations:
        kind, op = class_of(each.op), each.op
        seconds = each.seconds * factor(kind)
        if isinstance(op, ir.Gemm):
            recorder.launch(KERNELS["gemm"], seconds, "aten::mm", **(mm(op) if shapes else {}))
        elif isinstance(op, ir.Attention):
            pass_ = "backward" if op.pass_ == "bwd" else "forward"
            given = attention(op) if shapes else {}
            recorder.launch(
                KERNELS["attention"], seconds, f"aten::_flash_attention_{pass_}", **given
            )
        elif isinstance(op, ir.Streaming):
            for _ in range(op.launches):
                recorder.launch(
                    KERNELS.get(kind, ELEMENTWISE), seconds / op.launches, f"my::{kind}"
                )
        else:
            assert isinstance(op, ir.Collective | ir.SendRecv)
            recorder.launch(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", seconds, "", COMMUNICATION,
                **collective(getattr(op, "kind", "send"), op.bytes, each.group_size),
            )  # fmt: skip


def mm(op: ir.Gemm) -> dict[str, Any]:
    """Arguments of ``aten::mm`` whose strides say the layout."""
    left = [1, op.m] if op.layout == "NT" else [op.k, 1]
    right = [1, op.k] if op.layout == "TN" else [op.n, 1]
    return tensors([[op.m, op.k], [op.k, op.n]], [left, right])


def attention(op: ir.Attention) -> dict[str, Any]:
    q = [op.batch, op.seq_q, op.heads, op.head_dim]
    k = [op.batch, op.seq_k, op.heads, op.head_dim]
    if op.pass_ == "bwd":
        values = ["", "", "", "", "", "", "", "", "1", "1", "0.", "True"]
        return tensors([q, q, k, k, q, q], None, values, more=6)
    return tensors([q, k, k], None, ["", "", "", "", "", "1", "1", "0.", "True"], more=6)


def tensors(
    dims: list[list[int]],
    strides: list[list[int]] | None = None,
    values: Sequence[str] = (),
    more: int = 0,
) -> dict[str, Any]:
    return {
        "Input Dims": dims + [[]] * more,
        "Input type": [BF16] * len(dims) + ["Scalar"] * more,
        "Input Strides": strides or [],
        "Concrete Inputs": list(values),
    }


def collective(kind: str, size: int, ranks: int) -> dict[str, Any]:
    return {
        "Collective name": {"all_reduce": "allreduce", "all_gather": "_allgather_base",
                            "reduce_scatter": "_reduce_scatter_base"}.get(kind, kind),
        "In msg nelems": size // 2, "Out msg nelems": size // 2, "Group size": ranks,
        "dtype": "BFloat16", "Process Group Description": "GROUP",
        "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip
