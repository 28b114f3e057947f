"""What the files of no framework do is said by each of them."""

import pytest

from tests.simulators.jobs import LLAMA, make_job
from trainscout.reports.launch import deepspeed, megatron_bridge, megatron_lm, torchtitan
from trainscout.simulators.predictor.question.tuning import Dpo


@pytest.mark.parametrize("framework", [deepspeed, megatron_bridge, megatron_lm, torchtitan])
@pytest.mark.parametrize("precomputed", [True, False])
def test_no_files_train_on_pairs(framework, precomputed):
    job = make_job(LLAMA, training={"dpo": Dpo(precomputed)})
    reasons = [each for each in framework.launch(job).impossible if "training.dpo" in each]
    assert len(reasons) == 1
    assert not framework.launch(job).files
