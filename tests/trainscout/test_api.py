"""``import trainscout as ts``: its names, what they take and give, and what they leave alone."""

from __future__ import annotations

import builtins
import dataclasses
import doctest
import importlib
import json
import pickle

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

import trainscout as ts
from trainscout.cli import main
from trainscout.reports.files import recipe_dict

MODULES = ("trainscout.api.answers", "trainscout.api.ask", "trainscout.api.questions")
SMALL = {"model": "gpt3_2b7", "cluster": "h100_64", "num_nodes": 1, "global_batch_size": 64}


@pytest.fixture(scope="module")
def small():
    return ts.question(**SMALL)


@pytest.fixture(scope="module")
def found(small):
    return ts.search(small, search="exact", top_k=3, executor="serial")


@pytest.fixture(autouse=True)
def _leaves_no_trace(tmp_path, monkeypatch, capfd):
    """Whatever is asked, nothing is written here or printed, and Hydra is as it was."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.glob("[!_]*"))
    assert capfd.readouterr() == ("", "")
    assert not GlobalHydra.instance().is_initialized()


def test_weights_in_4_bits_run_on_what_has_them() -> None:
    """Megatron-Bridge and TorchTitan have none; the training names what it is run with."""
    asked = {"model": "llama3_8b", "gpus": "1xRTX4090", "training": "qlora"}
    assert ts.question(**asked).framework.name == "huggingface"
    assert ts.search(ts.question(**asked)).best.fits
    other = ts.question(**asked, framework="any")
    assert ts.search(other).best.recipe.framework in ("nemo_automodel", "deepspeed")
    with pytest.raises(ts.InputError, match="megatron_core has no quantised weights"):
        ts.predict(other)


def test_pairs_are_searched_in_whole_batches() -> None:
    best = ts.search(ts.question(model="clip_vit_l14", gpus="8xH100")).best
    assert best.recipe.micro_batch == 1536 // 8


def test_the_names_that_programs_rely_on():
    wanted = ("question", "predict", "search", "explain", "plan", "models", "gpus", "clusters")
    for name in (*wanted, "InputError", "Recipe"):
        assert name in ts.__all__
        assert name in dir(ts)
    assert all(getattr(ts, name) is not None for name in ts.__all__)
    with pytest.raises(AttributeError, match="serach"):
        ts.serach  # noqa: B018


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_every_public_function_and_answer_has_an_example():
    for name in ("question", "catalogue", "simulator", "predict", "search", "explain", "plan"):
        assert ">>>" in getattr(ts, name).__doc__
    for name in ("Prediction", "SearchResult", "Explanation", "CapacityPlan"):
        assert ">>>" in getattr(ts, name).__doc__


# Questions.


def test_a_name_a_file_fields_and_a_value_are_one_question(tmp_path, small):
    _ = tmp_path / "_mine"
    _.mkdir()
    model, cluster = dataclasses.asdict(small.model), dataclasses.asdict(small.cluster)
    (_ / "model.yaml").write_text(json.dumps(model), encoding="utf-8")
    text = "defaults: [{override /gpu@_global_.gpu: h100}, _self_]\n"
    for field, value in cluster.items():
        text += f"{field}: {json.dumps(value)}\n"
    (_ / "cluster.yaml").write_text(text, encoding="utf-8")
    batch = {"global_batch_size": 64}
    assert ts.question(_ / "model.yaml", str(_ / "cluster.yaml"), training=batch) == small
    assert ts.question(model, cluster, gpu="h100", training=batch) == small
    assert ts.question(small.model, small.cluster, training=small.training) == small


def test_a_gpu_of_ones_own_is_its_rates():
    fields = dataclasses.asdict(ts.gpus["h100"]) | {"name": "ours", "architecture": "blackwell"}
    asked = ts.question("gpt13b", "h100_64", gpu=fields, memory_bytes=10**11)
    assert (asked.gpu.architecture.name, asked.gpu.memory_bytes) == ("blackwell", 10**11)
    with pytest.raises(ts.InputError, match="did you mean 'hopper'"):
        ts.question("gpt13b", "h100_64", architecture="hoper")


def test_a_folder_of_declarations_adds_names(tmp_path, small):
    folder = tmp_path / "_mine"
    (folder / "model").mkdir(parents=True)
    fields = dataclasses.asdict(small.model) | {"name": "ours"}
    (folder / "model" / "ours.yaml").write_text(json.dumps(fields), encoding="utf-8")
    asked = ts.question("ours", "h100_64", config_dir=folder)
    assert asked.model == ts.catalogue(folder).models["ours"]
    assert "ours" not in ts.models


def test_fields_are_changed_by_name():
    asked = ts.question(
        "llama3_8b",
        "h100_64",
        num_nodes=np.int64(3),
        sequence_length=4096,
        price_usd_per_hour=1,
        **{"model.vocab_size": 1000},
    )
    assert asked.cluster.num_gpus == 24
    assert (asked.training.sequence_length, asked.model.sequence_length) == (4096, 8192)
    assert (asked.gpu.price_usd_per_hour, asked.model.vocab_size) == (1.0, 1000)
    assert asked.gpu.sources["price_usd_per_hour"] == "the caller"


def test_a_cluster_of_ones_own_has_to_say_its_gpu(small):
    ours = dataclasses.replace(small.cluster, name="ours")
    with pytest.raises(ts.InputError, match="gpu=None: is missing"):
        ts.question("gpt13b", ours)
    assert ts.question("gpt13b", ours, gpu="h200").gpu == ts.gpus["h200"]


def test_loaded_values_are_mappings():
    assert ts.clusters["h800_96"].num_gpus == 96
    assert {"gpt175b", "llama3_8b"} <= set(ts.models)
    with pytest.raises(KeyError, match="did you mean 'h100'"):
        ts.gpus["h10"]


# Predictions.


def test_a_prediction_is_the_commands(capfd, small):
    ours = ts.predict(small, tp=2, sp=True)
    given = ["model=gpt3_2b7", "cluster=h100_64", "cluster.num_nodes=1", "format=json"]
    given += ["training.global_batch_size=64", "recipe.tp=2", "recipe.sp=true"]
    assert main(["simulate", *given]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown.items() >= json.loads(json.dumps(ours.to_dict())).items()


def test_a_prediction_knows_what_it_is_of(small):
    step = ts.predict(small, tp=2)
    assert (step.question, step.recipe) == (small, ts.Recipe(tp=2))
    both = ts.predict(small, step.recipe, micro_batch=np.int64(2)).recipe
    assert both == ts.Recipe(tp=2, micro_batch=2)
    assert step.memory.peak_reserved_bytes > 0
    assert pickle.loads(pickle.dumps(step)) == step
    (row,) = step.to_frame().to_dict("records")
    assert (row["tp"], row["dp"], row["step_time_s"]) == (2, 4, step.step_time_s)


def test_another_simulator_is_asked():
    asked = ts.question("gpt3_2b7", "h100_64", global_batch_size=64)
    plain = ts.predict(asked, tp=8)
    narrow = ts.simulator(network="flow", topology={"oversubscription": 8})
    assert ts.predict(asked, tp=8, simulator=narrow).step_time_s > plain.step_time_s
    with pytest.raises(ts.InputError, match="network=flowe"):
        ts.simulator(network="flowe")
    with pytest.raises(ts.InputError, match="is not looked at with network=whitebox"):
        ts.simulator(topology="fat_tree")


# Searches.


def test_three_lines_to_the_best_recipe(small, found):
    assert found.best.fits
    assert found.proved
    assert found.best == found.top[0]
    assert found.best == ts.predict(small, found.best.recipe)
    assert len(found.top) == 3


def test_a_notebook_shows_the_answer_with_its_picture(found):
    shown = found._repr_html_()
    assert shown.index("<pre") < shown.index("<svg")
    assert found.picture.to_svg() in shown


def test_a_search_is_a_frame(found):
    frame = found.to_frame()
    assert list(frame.index) == [1, 2, 3]
    assert frame.step_time_s[1] == found.best.step_time_s
    assert len(found.to_frame("trials")) == len(found.found.trials)
    layouts = found.to_frame("layouts")
    assert layouts.step_time_s.iloc[0] == found.best.step_time_s
    assert len(layouts) >= layouts[["tp", "pp"]].drop_duplicates().shape[0] > 1
    with pytest.raises(ts.InputError):
        found.to_frame("layout")


def test_a_search_may_be_kept_and_gone_on_with(tmp_path, small, found):
    kept = {
        "storage": str(tmp_path / "_kept"),
        "search": "exact",
        "executor": "serial",
        "top_k": 3,
    }
    assert ts.search(small, **kept).best == found.best
    with pytest.raises(ts.InputError, match=r"search\.storage"):
        ts.search(small, **kept)
    assert ts.search(small, resume=True, **kept).found.resumed_trials > 0


def test_a_search_tells_how_far_it_is(small):
    seen = []
    options = {"search": "random", "n_trials": 8, "batch_size": 4, "executor": "serial"}
    result = ts.search(small, progress=seen.append, **options)
    assert seen[-1].considered == 8
    assert result == dataclasses.replace(ts.search(small, **options), found=result.found)


def test_notebooks_show_how_far_a_search_is(small, monkeypatch, capfd):
    options = {"search": "random", "n_trials": 4, "executor": "serial"}
    ts.search(small, **options)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)  # as IPython does
    ts.search(small, **options)
    assert "4/4 recipes" in capfd.readouterr().err
    ts.search(small, progress=False, **options)
    assert capfd.readouterr().err == ""


def test_a_front_of_two_objectives(small):
    result = ts.search(
        small, objective=("step_time", "memory"), search="random", n_trials=20, executor="serial"
    )
    memory = [each.memory.peak_reserved_bytes for each in result.top]
    assert memory == sorted(memory, reverse=True)
    assert len(memory) > 1


def test_nothing_fits():
    asked = ts.question("gpt175b", "h100_64", num_nodes=1)
    result = ts.search(asked, space="maya_table3", search="exact", executor="serial")
    assert result.best is None
    assert result.to_frame().empty
    assert "nothing fits" in repr(result)
    assert "fits" in str(result)


# Comparisons.


def test_seconds_by_part_with_their_mechanism(small, found):
    why = ts.explain(ts.predict(small, tp=8), found.best)
    frame = why.to_frame()
    lead_s = found.best.step_time_s - ts.predict(small, tp=8).step_time_s
    assert frame.difference_s.sum() == pytest.approx(lead_s)
    assert frame.mechanism.iloc[0]
    assert sum(change.step_s for change in why.changes) == pytest.approx(lead_s)
    assert why.one_knob[0].recipe != ts.Recipe(tp=8)
    changes, knobs = why.to_frame("changes"), why.to_frame("one_knob")
    assert changes.step_s.sum() == pytest.approx(lead_s)
    assert knobs.step_s.iloc[0] == pytest.approx(
        why.one_knob[0].prediction.step_time_s - ts.predict(small, tp=8).step_time_s
    )
    assert list(changes.columns) == list(knobs.columns)
    with pytest.raises(ts.InputError, match="changes"):
        why.to_frame("change")


def test_one_recipe_alone(small):
    why = ts.explain(ts.Recipe(tp=8), question=small)
    assert list(why.to_frame().columns) == ["a_s"]
    assert why.changes == ()


def test_only_recipes_of_one_question_are_compared(small):
    other = ts.question("gpt3_2b7", "h100_64")
    with pytest.raises(ts.InputError, match="question="):
        ts.explain(ts.predict(small), ts.predict(other))
    with pytest.raises(ts.InputError, match="question=None: is missing"):
        ts.explain(ts.Recipe(), ts.Recipe(tp=2))
    with pytest.raises(ts.InputError, match=r"recipe\.tp=3"):
        ts.explain(ts.predict(small), ts.Recipe(tp=3))


# Capacity.


@pytest.fixture(scope="module")
def study():
    return ts.plan(
        {
            "name": "small",
            "models": ["gpt3_2b7"],
            "clusters": ["h100_64"],
            "training": {"global_batch_size": 64, "tokens": 1e11},
            "targets": {"quarter": {"days": 90}},
        },
        num_nodes=[1],
        n_jobs=1,
    )


def test_a_study_is_answered(study):
    assert study.answers["gpt3_2b7"].num_gpus == 8
    (row,) = study.to_frame().to_dict("records")
    assert set(study.to_frame("targets").model) == {row["model"]}
    assert (row["status"], row["targets_met"]) == ("fits", "quarter")


# What is wrong.


WHERE = {"model": "gpt13b", "cluster": "h100_64"}


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("question", {"model": "gpt13c"}, "did you mean 'gpt13b'"),
        ("question", {"cluster": "h100_65"}, "did you mean 'h100_64'"),
        ("question", {"cluster": "nowhere.yaml"}, "cluster=nowhere.yaml"),
        ("question", {"gpu": "h10"}, "gpu=h10: is not a known choice"),
        ("question", {"num_node": 1}, "did you mean 'num_nodes'"),
        ("question", {"name": "ours"}, "name=ours: is not a known name"),
        ("question", {"num_nodes": "few"}, "cluster.num_nodes=few: has the wrong type"),
        ("question", {"num_nodes": 0}, "cluster.num_nodes=0: is out of range"),
        ("question", {"model.moe.top_k": 2}, "belongs to fields that are not there"),
        ("question", {"training": {"global_batch": 1}}, "did you mean 'global_batch_size'"),
        ("question", {"config_dir": "nowhere"}, "config_dir=nowhere: is not a directory"),
        ("predict", {"tpp": 2}, "did you mean 'tp'"),
        ("predict", {"tp": "two"}, "recipe.tp=two: has the wrong type"),
        ("predict", {"tp": 3}, "recipe.tp=3"),
        ("predict", {"tp": 2, "dp": 8}, r"recipe.dp=8: is not GPUs / .*\(allowed: 4\)"),
        ("predict", {"simulator": "replai"}, "did you mean 'replay'"),
        ("predict", {"simulator": -1}, "simulator=-1: names no simulator"),
        ("search", {"objective": 2.5}, "objective=2.5: is no measure"),
        ("search", {"space": "megatrom"}, "did you mean 'megatron'"),
        ("search", {"space": {"knobs": {"tpp": {"choices": [1]}}}}, "tpp"),
        ("search", {"search": "exakt"}, "did you mean 'exact'"),
        ("search", {"objective": "speed"}, "objective=speed"),
        ("search", {"executor": "lokyy"}, "did you mean 'loky'"),
        ("search", {"n_trial": 3}, "did you mean 'n_trials'"),
        ("search", {"seed": -1}, "seed=-1"),
        ("plan", {"sweep": "llama3_9b"}, "did you mean 'llama3_8b'"),
        ("plan", {"clusters": ["h100_65"]}, "did you mean 'h100_64'"),
        ("plan", {"num_gpu": [8]}, "did you mean 'num_gpus'"),
        ("plan", {"num_gpus": [12]}, "is no number of whole nodes"),
        ("plan", {"prices_usd_per_hour": {"a40": 1}}, "is of a GPU that no cluster has"),
        ("plan", {"goodput": "llama"}, "goodput=llama"),
        ("plan", {"n_jobs": 0}, "n_jobs=0: is out of range"),
    ],
)
def test_what_is_wrong_is_refused(small, function, arguments, message):
    right = {"question": WHERE, "plan": {"sweep": "llama3_8b"}}.get(function, {"question": small})
    with pytest.raises(ts.InputError, match=message):
        getattr(ts, function)(**{**right, **arguments})


def test_a_recipe_as_a_search_writes_it_is_predicted(small, found):
    fields = json.loads(json.dumps(recipe_dict(found.best.recipe, small.job)))
    assert "dp" in fields
    assert ts.predict(small, **fields).step_time_s == found.best.step_time_s


# How answers show themselves.


def test_answers_show_themselves(small, found, study):
    step = ts.predict(small, tp=8)
    for answer in (step, found, ts.explain(step, found.best), study):
        assert len(str(answer).splitlines()) > 5
        assert answer._repr_html_().startswith("<pre")
        assert repr(answer).startswith("<")
        assert "\n" not in repr(answer)


def test_gpus_alone_are_a_cluster():
    asked = ts.question(model="llama3_8b", gpus="16xH100", tokens="1T")
    assert (asked.cluster.num_gpus, asked.gpu.name, asked.training.tokens) == (16, "h100", 1e12)
    for wrong in ({}, {"gpus": "16xH100", "cluster": "h100_64"}, {"gpus": "h100_64"}):
        with pytest.raises(ts.InputError):
            ts.question(model="llama3_8b", **wrong)
    for gpus in (16, "0xH100"):
        with pytest.raises(ts.InputError, match=f"gpus={gpus}: does not say how many"):
            ts.question(model="llama3_8b", gpus=gpus)
    with pytest.raises(ts.InputError, match="is no Recipe"):
        ts.predict(asked, {"tp": 2})
