"""What slices show of operations."""

from __future__ import annotations

import pytest

from trainscout.reports.timeline.chrome import arguments
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import CollectivePrice
from trainscout.simulators.predictor.replay.priced import PricedOp
from trainscout.simulators.predictor.workload.ir import Collective, Gemm, SendRecv, Streaming


def test_a_product_says_its_shape_work_and_rates() -> None:
    priced = PricedOp(Gemm("fc1", 1000, 1000, 1000, "bf16"), 1e-3, Evidence.MEASURED)
    assert arguments(priced, 1e-3) == {
        "shape": "1000x1000x1000 TN bf16",
        "flops": 2_000_000_000,
        "tflop_per_s": 2.0,
        "bytes": 6_000_000,
        "gb_per_s": 6.0,
        "evidence": "measured",
    }


def test_what_was_slowed_says_by_how_much_and_at_what_rate_it_ran() -> None:
    priced = PricedOp(Streaming("add", "elementwise", 8_000_000), 1e-3, Evidence.FITTED)
    shown = arguments(priced, 2e-3)
    assert shown["slowdown"] == 2.0
    assert shown["gb_per_s"] == 4.0
    assert "slowdown" not in arguments(priced, 1e-3)


def test_communication_says_how() -> None:
    price = CollectivePrice(2e-3, 16, "ring", "simple", Evidence.ESTIMATED, 1e9)
    op = Collective("grads", "all_reduce", 4_000_000, "dp")
    priced = PricedOp(op, 2e-3, Evidence.ESTIMATED, communication=price)
    assert arguments(priced, 2e-3) == {
        "communicator": "dp",
        "bytes": 4_000_000,
        "gb_per_s": 2.0,
        "algorithm": "ring",
        "protocol": "simple",
        "channels": 16,
        "evidence": "estimated",
    }


@pytest.mark.parametrize("seconds", [0.0])
def test_what_takes_no_time_has_no_rate(seconds: float) -> None:
    price = CollectivePrice(0.0, 0, "none", "none", Evidence.FITTED, 0.0)
    priced = PricedOp(SendRecv("boundary", 8), 0.0, Evidence.FITTED, communication=price)
    shown = arguments(priced, seconds)
    assert shown == {"communicator": "pp", "bytes": 8, "evidence": "fitted"}
