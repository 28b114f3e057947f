"""Every other word for a setting leads to one that there is."""

import dataclasses

import pytest

from trainscout.cli import top_level
from trainscout.commands.output_choice import VERBOSITIES
from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.input_errors import _spoken, meant_choice, meant_setting
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.registry import EXECUTORS, SAMPLERS
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS
from trainscout.simulators.predictor.question.training import Training

_MEANT, _CHOSEN = _spoken()
_PARTS = {
    "training": Training,
    "gpu": Gpu,
    "cluster": Cluster,
    "model": Model,
    "search": SearchOptions,
    "executor": ExecutorOptions,
}
OTHERS = {"executor": set(EXECUTORS), "search": set(SAMPLERS), "command": set(top_level())}


@pytest.mark.parametrize("setting", sorted(set(_MEANT.values())))
def test_a_setting_that_is_meant_exists(setting):
    setting, _, value = setting.partition("=")
    part, _, name = setting.rpartition(".")
    if part == "recipe":
        assert name in KNOBS
        assert not value or int(value) in KNOBS[name].choices
    elif part in _PARTS:
        assert name in {each.name for each in dataclasses.fields(_PARTS[part])}
    elif setting == "verbosity":
        assert value in VERBOSITIES
    elif (DECLARATIONS / setting).is_dir():
        assert not value
    else:
        targets = ("sweep.targets.quarter.days", "sweep.targets.budget.usd")
        assert setting in ("gpus", "objective", "hydra.run.dir", *targets, "sweep.num_gpus")


@pytest.mark.parametrize(("group", "word"), sorted(_CHOSEN))
def test_a_choice_that_is_meant_exists_and_is_another(group, word):
    files = {file.stem for file in (DECLARATIONS / group).glob("*.yaml")}
    names = files | OTHERS.get(group, set())
    assert _CHOSEN[group, word] in names
    assert word not in names


def test_words_are_read_in_any_spelling():
    assert meant_setting("globalBatch") == meant_setting("global-batch")
    assert meant_setting("gpu.price") == "gpu.price_usd_per_hour"
    assert meant_choice("search", "Bayesian") == "tpe"
    assert meant_setting("nothing") is None
    assert load_catalogue().frameworks[meant_choice("framework", "FSDP2")]
