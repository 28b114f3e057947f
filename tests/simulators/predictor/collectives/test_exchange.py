"""Tokens exchanged by kernels that store them directly, against HybridEP's own benchmark."""

from dataclasses import replace

import pytest

from tests.simulators.predictor.collectives import machines as m
from trainscout.simulators.predictor.collectives.price import price_collective, price_exchange
from trainscout.simulators.predictor.workload.ir import Collective, Communicator

# GPUs, GB/s of dispatch and combine in 16 bits, 32 SMs, kernels alone, GB200: deepseek-ai/DeepEP
# branch hybrid-ep, docs/README_Hybrid-EP.md. Tokens of a GPU itself count.
MEASURED = [
    (8, 764.03, 737.13),
    (16, 706.95, 666.26),
    (24, 665.97, 639.80),
    (32, 642.23, 605.15),
    (36, 632.31, 596.99),
]
TOKENS = 4096 * 7168 * 2
RACK = m.cluster(9, 4, domain=36)


def exchange(gpus: int, *, stored: bool = True) -> Collective:
    sent = round(TOKENS * gpus * (1 - (1 - 1 / gpus) ** 8))
    return Collective("dispatch", "all_to_all", sent, "ep", stored_bytes=(sent + TOKENS) * stored)


def inside(gpus: int) -> Communicator:
    return Communicator("ep", gpus, gpus, 1)


@pytest.mark.parametrize(("gpus", "dispatch", "combine"), MEASURED)
def test_rates_are_those_measured(gpus: int, dispatch: float, combine: float) -> None:
    op = exchange(gpus)
    price = price_exchange(op, inside(gpus), m.B200, RACK)
    rate = op.bytes / price.seconds / 1e9
    assert rate == pytest.approx((dispatch + combine) / 2, rel=0.02)
    assert price.channels == 32
    # A copy is written once, and read once where tokens are added up.
    assert price.wire_bytes_per_s * price.seconds == pytest.approx(op.bytes + TOKENS)


def test_elsewhere_it_is_priced_as_nccl_does_it() -> None:
    server, op = m.cluster(2, 8), exchange(8)
    for members, where, stated in (
        (inside(8), server, op),
        (Communicator("ep", 64, 32, 2), RACK, op),
        (inside(8), RACK, exchange(8, stored=False)),
    ):
        nccl = price_collective("all_to_all", op.bytes, members, m.B200, where)
        assert price_exchange(stated, members, m.B200, where) == nccl
    unlinked = replace(m.B200, nvlink_links=0, nvlink_bytes_per_s=0.0)
    nccl = price_collective("all_to_all", op.bytes, inside(8), unlinked, RACK)
    assert price_exchange(op, inside(8), unlinked, RACK) == nccl
    alone = price_exchange(op, Communicator("ep", 1, 1, 1), m.B200, RACK)
    assert alone.seconds == 0
