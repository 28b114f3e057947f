"""Link use: bytes are kept, and rates are those of what runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import CLUSTER, GPU, job_of
from trainscout.reports.timeline.chrome import LINKS, _sum_of_steps, link_use
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.replay.unroll import unroll


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(tp=8, sp=True),
        Recipe(tp=4, pp=4, vpp=2, overlap_grad_reduce=True),
        Recipe(tp=2, zero_stage=3),
        Recipe(tp=4, tp_comm_overlap=True, sp=True),
    ],
)
def test_links_carry_the_bytes_of_every_communication(recipe: Recipe) -> None:
    timeline = unroll(step_program(job_of(recipe), micro_batches=4))
    for stage in range(recipe.pp):
        used = link_use(timeline, stage)
        rows = np.flatnonzero(timeline.stage == stage)
        expected = dict.fromkeys(LINKS, 0.0)
        for row in rows.tolist():
            priced = timeline.operations[timeline.operation[row]]
            if priced is not None and priced.communication is not None:
                expected["nvlink"] += priced.communication.nvlink_bytes
                expected["nic"] += priced.communication.nic_bytes
        for name, total in expected.items():
            if name not in used:
                assert total == 0
                continue
            at_s, rate = used[name].at_s, used[name].bytes_per_s
            assert float((np.diff(at_s) * rate[:-1]).sum()) == pytest.approx(total)
            assert (rate >= 0).all()
            assert rate[-1] == 0


def test_tensor_parallelism_inside_a_node_uses_no_nic() -> None:
    cluster = replace(CLUSTER, num_nodes=1)
    job = replace(job_of(Recipe(tp=8)), cluster=cluster)
    used = link_use(unroll(step_program(job, micro_batches=1)), 0)
    assert set(used) == {"nvlink"}
    # No link is faster than it is on paper.
    assert used["nvlink"].bytes_per_s.max() <= GPU.nvlink_bytes_per_s


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 1000)),
        min_size=1,
        max_size=30,
    )
)
def test_steps_add_up(spans: list[tuple[int, int, int]]) -> None:
    start = np.array([each[0] for each in spans], dtype=np.float64)
    end = start + np.array([each[1] for each in spans], dtype=np.float64)
    rates = np.array([each[2] for each in spans], dtype=np.float64)
    use = _sum_of_steps(start, end, rates)
    for at, rate in zip(use.at_s.tolist(), use.bytes_per_s.tolist(), strict=True):
        assert rate == rates[(start <= at) & (at < end)].sum()
