"""Prices simple enough to compute a step by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import CollectivePrice
from trainscout.simulators.predictor.kernels.batch_prices import KernelPrices
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay import (
    boundary,
    device_block,
    graph,
    prices,
    simulator,
)
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Collective,
    Communicator,
    Gemm,
    GroupedGemm,
    Kernel,
    Streaming,
)


@dataclass(frozen=True)
class Rates:
    """A machine in few numbers; infinite rates are free.

    ``excess`` is by how much the slowest GPU is behind. ``free_head`` makes the output layer cost
    nothing, so that equal layers make equal stages.
    """

    flops_per_s: float = 1e12
    memory_bytes_per_s: float = np.inf
    wire_bytes_per_s: float = np.inf
    send_s: float = 0.0
    slowdown: float = 1.0
    launch_s: float = 0.0
    excess: float = 0.0
    free_head: bool = False


def kernel_seconds(op: Kernel, rates: Rates) -> float:
    if isinstance(op, Streaming):
        return op.bytes / rates.memory_bytes_per_s
    if rates.free_head and op.name.startswith("logits"):
        return 0.0
    return multiply_adds(op) / rates.flops_per_s


def multiply_adds(op: Kernel) -> float:
    if isinstance(op, Gemm):
        return 2.0 * op.batch * op.m * op.n * op.k
    if isinstance(op, GroupedGemm):
        return 2.0 * op.groups * op.m_per_group * op.n * op.k
    if isinstance(op, Attention):
        passes = 1 if op.pass_ == "fwd" else 2
        width = op.head_dim + op.head_dim_v
        return passes * 2.0 * op.batch * op.heads * op.seq_q * op.seq_k * width
    return 0.0


Machine = Callable[[Rates], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Replaces every price the replay asks for by what a ``Rates`` machine takes."""

    def install(rates: Rates) -> None:
        def price_kernels(gpu: Gpu, ops: Sequence[Kernel], measured: None = None) -> KernelPrices:
            seconds = [kernel_seconds(op, rates) for op in ops]
            return KernelPrices(
                np.array(seconds), np.ones(len(ops), dtype=np.int8), np.zeros(len(ops))
            )

        def communication(seconds: float) -> CollectivePrice:
            return CollectivePrice(seconds, 8, "ring", "simple", Evidence.FITTED, 1e9)

        def price_collective(
            kind: str, size: int, group: Communicator, gpu: Gpu, cluster: Cluster, dtype: str = ""
        ) -> CollectivePrice:
            steps = 2 if kind == "all_reduce" else 1
            share = (group.size - 1) / group.size
            return communication(steps * share * size / rates.wire_bytes_per_s)

        def price_exchange(
            op: Collective, communicator: Communicator, gpu: Gpu, cluster: Cluster
        ) -> CollectivePrice:
            return price_collective(op.kind, op.bytes, communicator, gpu, cluster, op.dtype)

        def price_send_recv(
            size: int, crosses: bool, group: Communicator, gpu: Gpu, cluster: Cluster
        ) -> CollectivePrice:
            return communication(rates.send_s if group.size > 1 else 0.0)

        def paired_slowdowns(
            gpu: Gpu,
            kernel_s: np.ndarray,
            channels: np.ndarray,
            traffic: np.ndarray,
            excess: float = 1.0,
        ) -> tuple[np.ndarray, np.ndarray]:
            return tuple(
                each.diagonal()
                for each in overlap_slowdowns(gpu, kernel_s, channels, traffic, excess)
            )

        def overlap_slowdowns(
            gpu: Gpu,
            kernel_s: np.ndarray,
            channels: np.ndarray,
            traffic: np.ndarray,
            excess: float = 1.0,
        ) -> tuple[np.ndarray, np.ndarray]:
            slowdown = 1 + excess * (rates.slowdown - 1)
            factors = np.full((len(kernel_s), len(channels)), slowdown)
            return factors, factors

        def host_launch_s(framework: Framework) -> float:
            return rates.launch_s

        def slowest_excess(ranks: int, spread: float) -> float:
            return rates.excess

        replaced = {
            "slowest_excess": slowest_excess,
            "price_kernels": price_kernels,
            "price_collective": price_collective,
            "price_exchange": price_exchange,
            "price_send_recv": price_send_recv,
            "overlap_slowdowns": overlap_slowdowns,
            "paired_slowdowns": paired_slowdowns,
            "host_launch_s": host_launch_s,
        }
        for module in (prices, device_block, boundary, graph, simulator):
            for name, fake in replaced.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, fake)
        # What was priced stays with the process.
        fresh = functools.lru_cache(lambda *settings: prices.Known())
        monkeypatch.setattr(prices, "_priced", fresh)

    return install
