"""Moye's Table 8: a model of 485 B on 8,192 H800, trained in fp32, a tenfold of micro-batches.

The paper does not say what is recomputed: with whole layers its memory is met. Its 64 stages take
15 bytes a parameter of a 64th of the model, which is one and a half of 96 layers and no stage's:
the fullest has two, so that of those rows no more is held than that they can be asked. Taken as
one layer a stage (96 // 64) they are predicted 19 to 25 % larger than published. The order of
published throughput is not met: (64, 2) before (32, 4), which is predicted 3 % faster. Published
throughput rises with the stages at one TP (152, 165, 171), as if gradients took 14 % of a step at
16 stages; over the declared network they take 1.2 %.
"""

import dataclasses

import pytest

import trainscout as ts
from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import get_simulator

MICRO_BATCHES = 10
FP32 = {"recompute": "full", "zero_stage": 0, "sp": True}


def asked(pp, tp):
    question = ts.question(model="gpt485b", cluster="h800_96")
    dp = 8192 // (pp * tp)
    training = dataclasses.replace(
        question.training, global_batch_size=MICRO_BATCHES * pp * dp, precision="tf32"
    )
    cluster = dataclasses.replace(question.cluster, num_nodes=1024)
    return dataclasses.replace(question, cluster=cluster, training=training)


@pytest.fixture(scope="module")
def predicted():
    layouts = [(16, 8), (32, 8), (32, 4)]
    replay = get_simulator("replay")
    return {
        (pp, tp): replay.simulate(asked(pp, tp).job(Recipe(pp=pp, tp=tp, **FP32)))
        for pp, tp in layouts
    }


@pytest.mark.parametrize(
    ("pp", "tp", "published_gb"), [(16, 8, 73.6), (32, 8, 38.4), (32, 4, 76.0)]
)
def test_memory_of_stages_of_equal_layers(predicted, pp, tp, published_gb):
    reserved = predicted[pp, tp].memory.peak_reserved_bytes
    assert reserved / 1e9 == pytest.approx(published_gb, rel=0.1)


def test_less_tensor_parallelism_is_faster_and_takes_the_memory(predicted):
    fast, slow = predicted[32, 4], predicted[32, 8]
    assert fast.mfu / slow.mfu == pytest.approx(180 / 165, rel=0.1)


def test_64_stages_of_96_layers_are_in_the_space():
    spec = load_catalogue().contents("space").chosen("space", "moye")
    recipes = survey(compile_space(spec, asked(64, 2))).recipes
    pairs = {(each.pp, each.tp, each.pipeline_layout) for each in recipes}
    assert {(64, tp, "balanced") for tp in (2, 4, 8)} <= pairs
