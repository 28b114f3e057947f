"""When parameters and gradients travel."""

from __future__ import annotations

import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.simulators.predictor.replay.structure import Sharing


@pytest.mark.parametrize(
    ("pp", "buffers", "beside"),
    [(1, "preallocated", True), (2, "preallocated", False), (2, "released", True)],
)
def test_torch_pipelines_reduce_when_the_last_backward_pass_has_ended(
    pp: int, buffers: str, beside: bool
) -> None:
    facts = {"pipeline_buffers": buffers}
    job = make_job(TINY, pp=pp, zero_stage=1, overlap_grad_reduce=True, training=facts)
    sharing = Sharing.of(job)
    assert sharing.reduce_overlaps is beside
    assert sharing.ends[0] is not beside
