import dataclasses

import pytest

from tests.simulators.jobs import LLAMA, make_job
from trainscout.optimizer.trial import SearchResult
from trainscout.simulators.laboratory.searched import answer as module
from trainscout.simulators.laboratory.searched.answer import search_settings
from trainscout.simulators.predictor.question.question import Question


@pytest.mark.parametrize(
    "less", [{"grad_dtype": "bf16"}, {"fp8_dot_product_attention": True, "fp8_output_proj": True}]
)
def test_what_a_run_had_in_fewer_bits_brings_nothing_else_in_fewer(less):
    space = search_settings()[0]
    job = make_job(LLAMA, training={"precision": "mxfp8"})
    question = Question(job.model, job.gpu, job.cluster, job.training, job.framework)
    again = module._allowing(space, less, question)
    assert again["numerics"] == "any"
    after = again["parts"]["megatron"]["knobs"]
    assert after["optimizer_states"]["choices"] == ["remainders"]
    assert after["precision"]["choices"] == [None, "fp8", "fp8_block", "mxfp8"]
    left = {"grad_dtype": None, "fp8_dot_product_attention": False, "fp8_output_proj": False}
    for name, value in (left | less).items():
        assert after[name]["choices"] == [value]


def test_a_run_is_held_to_its_recipe_in_the_bits_that_it_had():
    ran = make_job(LLAMA, training={"precision": "mxfp8"}, fp8_output_proj=True)
    here = dataclasses.replace(ran, recipe=dataclasses.replace(ran.recipe, fp8_output_proj=False))
    assert module._in_fewer_bits(ran, here) == {"fp8_output_proj": True}
    assert module._in_fewer_bits(here, here) == {}


def test_what_was_found_until_ctrl_c_answers_no_question():
    done = SearchResult((), (), (), ("step_time",), "proved", 1.0, 1)
    assert module._whole(done) is done
    with pytest.raises(KeyboardInterrupt):
        module._whole(dataclasses.replace(done, stopped="interrupted"))
