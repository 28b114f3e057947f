"""Collectives over the processes that ``torchrun`` started, on one node up to all of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

from .timing import SAMPLE_S, SAMPLES, Clock, calls_for


def node_counts(nodes: int) -> list[int]:
    """One, two, four ... and all of them."""
    counts = [1 << power for power in range(nodes.bit_length()) if 1 << power < nodes]
    return [*counts, nodes]


class TorchCollectives:
    """NCCL on CUDA, or gloo on CPUs, as torchrun's variables say; every process calls the same in
    the same order."""

    def __init__(
        self, torch: Any, clock: Clock, device: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Join the other processes.

        Raises:
            InputError: where the variables are not torchrun's, or nodes differ.
        """
        try:
            self.rank, world, self.ranks_per_node = (
                int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
            )
        except (KeyError, ValueError) as error:
            problem = f"is not as torchrun sets it ({error})"
            raise InputError("WORLD_SIZE", environment.get("WORLD_SIZE"), problem) from error
        if world % self.ranks_per_node:
            problem = f"is no whole number of nodes of {self.ranks_per_node}"
            raise InputError("WORLD_SIZE", world, problem, "as many processes on every node")
        self.nodes = world // self.ranks_per_node
        self._torch, self._clock, self._device = torch, clock, device
        distributed = torch.distributed
        if device != "cpu":
            torch.cuda.set_device(self.rank % self.ranks_per_node)
        distributed.init_process_group("gloo" if device == "cpu" else "nccl")
        self._groups = {
            count: distributed.new_group(list(range(count * self.ranks_per_node)))
            for count in node_counts(self.nodes)
        }

    def seconds(self, kind: str, nodes: int, size: int) -> float | None:
        """Of one call over the first ``nodes`` nodes, NCCL's size in bytes; None on ranks that
        take no part."""
        ranks = nodes * self.ranks_per_node
        if self.rank >= ranks:
            return None
        call = self._call(kind, self._groups[nodes], ranks, size)
        self._clock(call, 3)
        # As many calls on every rank, or they would wait for each other for ever.
        count = calls_for(10 * SAMPLE_S, self._slowest(self._clock(call, 1), nodes))
        samples = [self._clock(call, count) / count for _ in range(SAMPLES)]
        return self._slowest(statistics.median(samples), nodes)

    def _slowest(self, seconds: float, nodes: int) -> float:
        found = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._device)
        distributed = self._torch.distributed
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._groups[nodes])
        return float(found.item())

    def _call(self, kind: str, group: Any, ranks: int, size: int) -> Callable[[], object]:
        torch, distributed = self._torch, self._torch.distributed
        each = max(1, size // 2 // ranks)
        whole = torch.ones(each * ranks, dtype=torch.bfloat16, device=self._device)
        part = torch.ones(each, dtype=torch.bfloat16, device=self._device)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: distributed.all_reduce(whole, group=group),
            "all_gather": lambda: distributed.all_gather_into_tensor(whole, part, group=group),
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole, group=group),
            "all_to_all": lambda: distributed.all_to_all_single(
                torch.empty_like(whole), whole, group=group
            ),
        }
        return calls[kind]

    def close(self) -> None:
        self._torch.distributed.destroy_process_group()
