"""What is shown of one operation besides its name: work, rates, how it is priced."""

from __future__ import annotations

from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.replay.priced import KERNELS, PricedOp
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Collective,
    Convolution,
    Gemm,
    GroupedGemm,
    HostUpdate,
    Kernel,
    SendRecv,
    kernel_flops,
)

# A row this much longer than its operation alone was slowed by what ran beside it.
_SLOWED = 1.0005
_DIGITS = 4


def arguments(priced: PricedOp, seconds: float) -> dict[str, object]:
    """Of an operation that took ``seconds``: units in the names, rates achieved in that time."""
    op = priced.op
    shown: dict[str, object]
    if isinstance(op, Collective | SendRecv):
        shown = {
            "communicator": op.communicator,
            "bytes": op.bytes,
            **_per_s("gb_per_s", op.bytes / 1e9, seconds),
        }
        price = priced.communication
        if price is not None and price.seconds:
            shown |= {
                "algorithm": price.algorithm,
                "protocol": price.protocol,
                "channels": price.channels,
            }
    elif isinstance(op, HostUpdate):
        shown = {
            "host_bytes": op.host_bytes,
            "copied_bytes": op.gradient_bytes + op.parameter_bytes,
        }
    else:
        shown = _of_kernel(op, seconds)
    if seconds > _SLOWED * priced.seconds > 0:
        shown["slowdown"] = _rounded(seconds / priced.seconds)
    return shown | {"evidence": str(priced.evidence)}


def _of_kernel(op: Kernel, seconds: float) -> dict[str, object]:
    assert isinstance(op, KERNELS)
    shape, flops, moved = _shape(op), kernel_flops(op), moved_bytes(op)
    shown: dict[str, object] = {"shape": shape} if shape else {}
    if flops:
        shown |= {"flops": flops, **_per_s("tflop_per_s", flops / 1e12, seconds)}
    return shown | {"bytes": moved, **_per_s("gb_per_s", moved / 1e9, seconds)}


def _shape(op: Kernel) -> str:
    if isinstance(op, Gemm):
        batch = f"{op.batch} x " if op.batch > 1 else ""
        return f"{batch}{op.m} x {op.n} x {op.k} {op.dtype}"
    if isinstance(op, GroupedGemm):
        return f"{op.groups} groups of {op.m_per_group} x {op.n} x {op.k} {op.dtype}"
    if isinstance(op, Attention):
        return f"{op.batch} x {op.heads} heads x {op.seq_q} x {op.seq_k} {op.dtype}"
    if isinstance(op, Convolution):
        return f"{op.batch} x {op.in_channels} -> {op.out_channels} {op.dtype}"
    return ""


def _per_s(name: str, amount: float, seconds: float) -> dict[str, object]:
    return {name: _rounded(amount / seconds)} if seconds > 0 else {}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
