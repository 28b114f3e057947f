from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import EXPERTS, RUN, declarations
from trainscout.simulators.laboratory.searched import grouping
from trainscout.simulators.laboratory.searched.answer import default_software
from trainscout.simulators.laboratory.searched.grouping import (
    most_telling,
    precision_class,
    published_questions,
)
from trainscout.simulators.predictor.question.cluster import Cluster


def questions(*rows):
    return published_questions(rows, declarations(), default_software())


def test_runs_of_the_same_work_are_one_question_fastest_first():
    other = replace(RUN, id="tp4", tp=4, dp=8, measured_iter_s=3.0)
    (found,) = questions(RUN, other, replace(other, id="again", measured_iter_s=3.5))
    assert [run.row.id for run in found.runs] == ["tp4", "again", "run"]
    assert found.recipes == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"num_gpus": 128, "dp": 32},
        {"global_batch": 256},
        {"seq_len": 4096},
        {"dtype": "fp8"},
        {"gpu": "A100-80GB-SXM"},
        {"num_layers": 30},
    ],
)
def test_other_work_is_another_question(changed):
    assert len(questions(RUN, replace(RUN, id="other", **changed))) == 2


def test_how_tokens_are_sent_is_no_other_work():
    deepep = replace(EXPERTS, id="deepep", notes="DeepEP")
    (found,) = questions(EXPERTS, deepep)
    assert found.question.model.moe.dispatcher == "alltoall"
    assert {run.job.model.moe.dispatcher for run in found.runs} == {"alltoall", "deepep"}


@pytest.mark.parametrize(
    "changed",
    [{"quality": "C"}, {"extrapolated": True}, {"measured_iter_s": None}, {"gpu": "MI250X"}],
)
def test_what_tells_no_step_is_left_out(changed):
    assert not questions(replace(RUN, **changed))


def test_a_question_is_as_somebody_asks_today():
    (found,) = questions(RUN)
    assert found.question.framework == default_software()
    assert found.best.job.cluster.memory_reserve == 0
    assert found.question.cluster.memory_reserve == Cluster.memory_reserve > 0


def test_software_of_the_past_is_asked_with_itself():
    (found,) = questions(replace(RUN, framework="Megatron-LM (2021)", gpu="A100-80GB-SXM"))
    assert found.question.framework == found.best.job.framework
    assert found.question.framework.attention == "unfused"


@pytest.mark.parametrize(
    ("precision", "name"), [("bf16", "16-bit"), ("fp16", "16-bit"), ("mxfp8", "8-bit")]
)
def test_precisions_fall_in_classes(precision, name):
    assert precision_class(precision) == name


def test_of_one_kind_the_most_recipes_tell_most(monkeypatch):
    small = [RUN, replace(RUN, id="tp4", tp=4, dp=8)]
    large = replace(RUN, id="large", num_gpus=128, dp=32)
    assert [q.question.cluster.num_gpus for q in most_telling(questions(*small, large))] == [64]
    assert [q.question.cluster.num_gpus for q in most_telling(questions(RUN, large))] == [128]
    models = [replace(RUN, id=name, model=name, vocab=5120 + i) for i, name in enumerate("abc")]
    monkeypatch.setattr(grouping, "FROM_ONE_PUBLICATION", 2)
    assert len(most_telling(questions(*models))) == 2
    ampere = [replace(row, id=f"{row.id}2", gpu="A100-80GB-SXM") for row in models]
    assert len(most_telling(questions(*models, *ampere))) == 4
