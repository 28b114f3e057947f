"""What the files of no framework do is said by each of them."""

import pytest

from tests.simulators.jobs import JOINED, LLAMA, SEEING, make_job
from trainscout.reports.launch import deepspeed, megatron_bridge, megatron_lm, torchtitan
from trainscout.simulators.predictor.question.tuning import Distillation, Dpo


@pytest.mark.parametrize("framework", [deepspeed, megatron_bridge, megatron_lm, torchtitan])
@pytest.mark.parametrize("precomputed", [True, False])
def test_no_files_train_on_pairs(framework, precomputed):
    job = make_job(LLAMA, training={"dpo": Dpo(precomputed)})
    reasons = [each for each in framework.launch(job).impossible if "training.dpo" in each]
    assert len(reasons) == 1
    assert not framework.launch(job).files


@pytest.mark.parametrize("framework", [deepspeed, megatron_lm, torchtitan])
def test_a_teacher_is_written_for_megatron_bridge_alone(framework):
    job = make_job(LLAMA, training={"distillation": Distillation(LLAMA)})
    assert any("training.distillation" in each for each in framework.launch(job).impossible)
    assert megatron_bridge.launch(job).files


@pytest.mark.parametrize("framework", [deepspeed, megatron_bridge, megatron_lm, torchtitan])
@pytest.mark.parametrize("model", [JOINED, SEEING])
def test_no_files_have_latents_or_towers(framework, model):
    assert any(each.startswith("model: ") for each in framework.launch(make_job(model)).impossible)
