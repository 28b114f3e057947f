"""Studies as declared: those that ship, and every command that the documentation shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hydra import compose, initialize_config_module

import trainscout as ts
from trainscout.commands.capacity_plan import build_capacity, named_declarations
from trainscout.commands.schemas import register_commands
from trainscout.planning.cells import study_cells
from trainscout.planning.study import Target, WhatIf
from trainscout.simulators.predictor.question.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def hydra():
    register_commands("plan")
    with initialize_config_module("conf", version_base="1.3"):
        yield


def plan(*overrides: str):
    return build_capacity(compose("plan", list(overrides)))


def test_the_large_study_is_72_searches():
    cells = plan("sweep=gpu_types").cells
    assert len(cells) == 72
    assert len({cell.question.gpu.name for cell in cells}) == 4
    assert {cell.question.cluster.name for cell in cells if cell.question.gpu.name == "h200"} == {
        "h100_512"
    }


def test_a_model_is_a_name_of_the_hub_or_a_configuration_too(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "gpt2"}')
    models = f"sweep.models=[meta-llama/Llama-3.1-8B,{file}]"
    cells = plan("sweep=llama3_8b", models).cells
    assert {cell.question.model.num_layers for cell in cells} == {32, 12}


def test_switches_that_take_over_others_are_cells_of_their_own(tmp_path):
    (tmp_path / "topology").mkdir()
    for name, ratio in (("ours", 1), ("cheaper", 4)):
        text = f"defaults: [leaf_spine]\noversubscription: {ratio}\n"
        (tmp_path / "topology" / f"{name}.yaml").write_text(text)
    named = ts.catalogue(tmp_path)
    declared = plan("sweep=llama3_8b")
    study = replace(declared.study, topologies=("ours", "cheaper"))
    framework, simulator = named.frameworks["any"], ts.simulator(network="flow")
    cells = study_cells(study, named_declarations(study, framework, named, simulator))
    assert len({cell.key for cell in cells}) == len(cells) == 2 * len(declared.cells)


def test_targets_and_what_ifs_are_typed():
    study = plan("sweep=llama3_8b", "sweep.targets.late.days=400").study
    assert study.targets["late"] == Target(days=400.0)
    assert study.what_ifs["next_gpu"] == WhatIf(cluster="b200_8")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("sweep.targets.month.dys=3", "did you mean 'days'"),
        ("sweep.what_ifs.more.cluster=h100_63", "h100_63: is not a known choice"),
        ("sweep.training.tokens=lots", "sweep.training.tokens=lots"),
        ("search.storage=x.journal", "means nothing here"),
        ("n_jobs=0", "n_jobs=0: is out of range"),
        ("webhook=ftp://example.org", "is no address"),
        ("sweep.prices_usd_per_hour.a40=1", "is of a GPU that no cluster has"),
        ("sweep.num_gpus=[12]", "is no number of whole nodes"),
        ("goodput.gpu_mtbf_hours=-1", "goodput.gpu_mtbf_hours=-1.0: is out of range"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    from trainscout.conf.input_errors import explain_hydra_error

    with pytest.raises(Exception) as caught:  # noqa: PT011
        plan(wrong)
    explained = explain_hydra_error(caught.value)
    assert isinstance(explained, InputError)
    assert message in str(explained)
