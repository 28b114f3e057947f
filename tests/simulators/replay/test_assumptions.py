"""What a prediction says it takes for granted."""

from __future__ import annotations

from simulators.replay.simulator import ReplaySimulator
from tests.simulators.jobs import MOE, TINY, make_job


def said(**job: object) -> str:
    return "; ".join(ReplaySimulator().simulate(make_job(**job)).assumptions)


def test_each_assumption_is_stated_only_where_it_is_made() -> None:
    alone = said(model=TINY, gpus_per_node=1)
    assert "NCCL buffers are estimated" in alone
    assert "slower than its peers" not in alone
    plain = said(model=TINY, tp=2)
    assert "slower than its peers" in plain
    for word in ("evenly loaded", "TP overlap", "share a NIC"):
        assert word not in plain
    assert "evenly loaded" in said(model=MOE, ep=2)
    assert "TP overlap" in said(model=TINY, tp=2, sp=True, tp_comm_overlap=True)
    assert "share a NIC" in said(model=TINY, pp=2, vpp=2)
