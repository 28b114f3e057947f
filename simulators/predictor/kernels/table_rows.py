"""Measured kernels as rows of the tables that ``measured_rows`` reads."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Gemm,
    GroupedGemm,
    Streaming,
    TransformerKernel,
)

_TAIL = ("time_us", "flag", "source")
_ATTENTION = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal")
# What says which measurement a row is; what the run found out follows.
KEYS = {
    "gemm": ("gpu", "dtype", "m", "n", "k", "batch", "layout"),
    "grouped_gemm": ("gpu", "dtype", "groups", "m_per_group", "n", "k", "stage"),
    "attention": ("gpu", "dtype", "pass", *_ATTENTION),
    "streaming": ("gpu", "op", "pass", "dtype", "asked_bytes"),
}
COLUMNS = {
    "gemm": (*KEYS["gemm"], "impl", *_TAIL),
    "grouped_gemm": (*KEYS["grouped_gemm"], "impl", *_TAIL),
    "attention": (*KEYS["attention"], "impl", "tflops", *_TAIL),
    "streaming": (*KEYS["streaming"], "shape", "bytes", "gbps", "impl", *_TAIL),
}
# Published tables' names of what is timed for a class of memory-bound kernels.
PUBLISHED_NAMES = {"elementwise": "add", "activation": "gelu", "norm": "rms_norm"}
STAGES = {"TN": "fwd", "NN": "bwd_grad_act", "NT": "bwd_grad_w"}


def kernel_class(op: TransformerKernel) -> str:
    """The table an operation's row belongs to."""
    if isinstance(op, GroupedGemm):
        return "grouped_gemm"
    if isinstance(op, Gemm):
        return "gemm"
    return "attention" if isinstance(op, Attention) else "streaming"


def row_of(op: TransformerKernel, gpu: str, precision: str) -> dict[str, object]:
    """The columns that say what is measured."""
    row: dict[str, object] = {"gpu": gpu}
    if isinstance(op, Streaming):
        named = op.kind.removesuffix("_plain")
        kind = named.removesuffix("_fwd").removesuffix("_bwd")
        passes = "bwd" if named.endswith("_bwd") else "fwd"
        row |= {"op": PUBLISHED_NAMES.get(kind, kind), "pass": passes, "dtype": precision}
        return row | {"asked_bytes": op.bytes}
    row["dtype"] = op.dtype
    if isinstance(op, Attention):
        row |= {name: int(getattr(op, name)) for name in _ATTENTION}
        return row | {"pass": op.pass_}
    if isinstance(op, Gemm):
        return row | {name: getattr(op, name) for name in ("m", "n", "k", "batch", "layout")}
    # Published grouped tables give the forward product's dimensions for every pass.
    outputs, inputs = (op.k, op.n) if op.layout == "NN" else (op.n, op.k)
    sizes = {"groups": op.groups, "m_per_group": op.m_per_group, "n": outputs, "k": inputs}
    return row | sizes | {"stage": STAGES[op.layout]}
