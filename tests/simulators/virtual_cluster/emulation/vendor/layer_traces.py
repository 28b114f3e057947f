"""Runs a tracing script of this folder as a process and reads what it wrote."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.warm.session import ROOT, environment, run_rank
from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    Collective,
    Event,
    Op,
    Phase,
)
from trainscout.simulators.virtual_cluster.traces.files import read_trace
from trainscout.simulators.virtual_cluster.traces.vocabulary import (
    NAMESPACE,
    arguments,
    kernel_of,
    moved_bytes,
)

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Pass:
    """Events of one pass over a layer."""

    events: tuple[Event, ...]

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def kernels(self, *names: str) -> list[Op]:
        """Emulated kernels, of these names if any, in launch order."""
        found = [op for op in self.of(Op) if op.name.startswith(f"{NAMESPACE}.")]
        return [op for op in found if not names or kernel_name(op) in names]

    def gemms(self) -> list[tuple[str, str, tuple[int, int, int]]]:
        """Use, layout and ``m, n, k`` of every product."""
        return [_gemm(op) for op in self.kernels() if kernel_of(op).stands_for == "gemm"]

    def collectives(self) -> list[tuple[str, int]]:
        """Kind and bytes, the larger of both sides."""
        return [(each.kind, max(each.bytes_in, each.bytes_out)) for each in self.of(Collective)]

    def bytes_of(self, *names: str) -> list[int]:
        """Bytes each of these kernels moves."""
        return [moved_bytes(op) for op in self.kernels(*names)]


def kernel_name(op: Op) -> str:
    """``gemm`` of ``emulated.gemm.default``."""
    return kernel_of(op).name


def _gemm(op: Op) -> tuple[str, str, tuple[int, int, int]]:
    given: dict[str, Any] = arguments(op)
    out = given.get("out") or op.outputs[0]
    left = given["left"].shape
    k = left[0] if given["layout"] == "NT" else left[-1]
    return given["use"], given["layout"], (math.prod(out.shape[:-1]), out.shape[-1], k)


def passes(events: tuple[Event, ...]) -> Iterator[tuple[str, Pass]]:
    """Forward and backward passes in order."""
    name, found = "", []
    for event in (*events, Phase("end", 0)):
        if isinstance(event, Phase):
            if name in (FORWARD, BACKWARD):
                yield name, Pass(tuple(found))
            name, found = event.phase, []
        else:
            found.append(event)


@dataclass(frozen=True)
class Layer:
    """The second micro-batch of a layer: its passes and what the forward kept."""

    first_forward: Pass
    forward: Pass
    backward: Pass
    saved_bytes: int


def run_script(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder; what it wrote as ``figures.json``."""
    found = run_rank(
        *(str(Path(__file__).with_name(script)), str(folder), *arguments),
        cwd=folder,
        environment=environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    return figures


def read_layer(folder: Path, name: str, saved_bytes: int) -> Layer:
    """One case's trace."""
    found = list(passes(read_trace(folder / f"{name}.trace").events))
    assert [phase for phase, _ in found] == [FORWARD, BACKWARD] * 2
    return Layer(found[0][1], found[2][1], found[3][1], saved_bytes)
