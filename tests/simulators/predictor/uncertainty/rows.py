"""Made-up residuals for the tests of error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainscout.simulators.predictor.uncertainty.features import Features
from trainscout.simulators.predictor.uncertainty.table import (
    COLUMNS,
    PARTS,
    Residual,
    ResidualTable,
)

FEATURES = Features(
    gpu="h100",
    architecture="hopper",
    vendor="nvidia",
    bits=16,
    moe=False,
    num_gpus=64,
    attention="flash",
    fusion="fused",
    framework="megatron_core",
    fabric="infiniband 400",
    layer_s=0.01,
    communication_share=0.1,
    host_share=0.0,
    kernel_error=0.07,
    fabric_error=0.0,
    slow_fabric_error=0.0,
)


def residual(
    number: int,
    value: float,
    source: str = "one",
    sweep: str = "1",
    shares: Mapping[str, float] | None = None,
    layout: int = 1,
    tflops: float = 400.0,
    blind_test: int = 1,
    **changes: Any,
) -> Residual:
    """A run like ``FEATURES`` but for ``changes``."""
    return Residual(
        id=f"run{number}",
        source=source,
        sweep=sweep,
        layout=layout,
        blind_test=blind_test,
        features=replace(FEATURES, **changes),
        shares={"compute": 1.0} if shares is None else shares,
        tflops=tflops,
        log_residual=value,
    )


def table_of(rows: Sequence[Residual]) -> ResidualTable:
    """The table of such runs, whose figures a file would round."""
    cells = []
    for row in rows:
        values = {**dict.fromkeys(PARTS, 0.0), **row.shares, **vars(row.features), **vars(row)}
        own = [values[name] for name in COLUMNS]
        cells.append([str(int(each) if isinstance(each, bool) else each) for each in own])
    return ResidualTable(cells)
