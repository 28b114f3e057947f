from dataclasses import replace

import pytest

from tests.samples import CLUSTER, MODEL, TRAINING
from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.would_fit import would_fit
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import SimulatorSpec, get_simulator

# 24 layers of 8,192: 19 B parameters.
LARGE = replace(MODEL, num_layers=24, hidden_size=8192, num_heads=64, ffn_hidden_size=32768)
ONE_NODE = replace(CLUSTER, num_nodes=1)
QUESTION = Question(LARGE, load_catalogue().gpus["h100"], ONE_NODE, TRAINING)
SPACE = {"name": "flat", "knobs": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "sp": [False]}}
SPEC = SimulatorSpec()


def changes(closest, question=QUESTION, space=SPACE):
    return would_fit(question, space, SPEC, closest)


def test_everything_claimed_was_simulated_and_fits():
    found = changes(Recipe(tp=1))
    assert found
    for each in found:
        assert why_invalid(each.job) is None
        again = get_simulator(SPEC).simulate(each.job)
        assert again == each.prediction
        assert again.fits


def test_settings_say_what_was_changed():
    closest = Recipe(tp=1)
    assert not get_simulator(SPEC).simulate(QUESTION.job(closest)).fits
    knobs, *others = changes(closest)
    given = dict(setting.removeprefix("space.knobs.").split("=") for setting in knobs.settings)
    for name, value in given.items():
        assert str(getattr(knobs.job.recipe, name)).lower() == value.replace("null", "none")
    assert knobs.job.cluster == ONE_NODE
    for each in others:
        (setting,) = each.settings
        name, value = setting.split("=")
        if name == "gpu":
            assert each.job.gpu == load_catalogue().gpus[value]
            assert each.job.recipe == closest
        else:
            assert (name, int(value)) == ("cluster.num_nodes", each.job.cluster.num_nodes)


def test_nodes_are_doubled_until_something_fits():
    tight = replace(QUESTION, model=replace(LARGE, num_layers=96))
    space = SPACE | {"constants": {"recompute": "full", "zero_stage": 1}}
    nodes = [each for each in changes(None, tight, space) if "num_nodes" in each.settings[0]]
    (more,) = nodes
    assert more.job.cluster.num_nodes > 2
    half = replace(tight, cluster=replace(ONE_NODE, num_nodes=more.job.cluster.num_nodes // 2))
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8):
            job = half.job(Recipe(tp=tp, pp=pp, recompute="full", zero_stage=1))
            if why_invalid(job) is None:
                assert not get_simulator(SPEC).simulate(job).fits


def test_gpus_that_were_counted_are_counted_again():
    cluster, gpu = load_catalogue().machines("1xrtx4090")
    space = {"name": "one", "knobs": {"tp": [1, 2, 4, 8]}, "constants": {"recompute": "full"}}
    small = replace(LARGE, num_layers=4)
    (more,) = changes(None, Question(small, gpu, cluster, TRAINING), space)
    assert more.settings == (f"gpus={more.job.cluster.num_gpus}xrtx4090",)
    assert more.job.cluster == load_catalogue().machines(more.settings[0][5:])[0]


def test_a_machine_without_nics_is_not_multiplied():
    alone = replace(ONE_NODE, nics_per_node=0, nic_gbps=0.0)
    tight = replace(QUESTION, model=replace(LARGE, num_layers=96), cluster=alone)
    assert changes(None, tight, SPACE | {"constants": {"recompute": "full"}}) == ()


def test_nothing_is_claimed_where_nothing_helps():
    hopeless = replace(LARGE, num_layers=8, hidden_size=2**17, num_heads=1024)
    hopeless = replace(hopeless, ffn_hidden_size=2**19)
    assert changes(Recipe(tp=8), replace(QUESTION, model=hopeless)) == ()


@pytest.mark.parametrize("name", ["traced", "mine:Simulator"])
def test_other_simulators_are_not_asked(name):
    assert would_fit(QUESTION, SPACE, SimulatorSpec(name), Recipe()) == ()
