"""Whole studies over a fake simulator: stored, resumed, stopped, failing."""

import functools
import json
import os
from dataclasses import replace

import pytest

from tests.planning.fakes import SETTINGS, STUDY, answer, cell, declarations
from trainscout.planning.answer import Answer, answer_cell, failed
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import answer_cells, run_study
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Target, WhatIf
from trainscout.reports.nothing_found import why_nothing_fits

SEARCH = functools.partial(answer_cell, settings=SETTINGS, why_nothing=why_nothing_fits)


def study_of(store, search=SEARCH, study=STUDY, reliability=None, shown=None):
    return run_study(
        study,
        declarations(),
        reliability or Reliability(),
        store,
        search,
        n_jobs=1,
        on_progress=(lambda _: None) if shown is None else shown.append,
    )


@pytest.fixture
def store(tmp_path):
    return AnswerStore(tmp_path / "cells", SETTINGS)


def test_a_study_searches_every_cell_and_says_what_meets_its_targets(store):
    study = replace(
        STUDY,
        clusters=("here", "there"),
        targets={"fits": Target(), "never": Target(days=1e-6)},
        what_ifs={"twice": WhatIf(size=2), "odd": WhatIf(size=0.3)},
    )
    shown = []
    outcome = study_of(store, study=study, shown=shown)
    assert [result.answer.status for result in outcome.results] == ["fits"] * 6
    (model,) = outcome.models
    assert [len(target.meeting) for target in model.targets] == [6, 0]
    assert not model.meets_all
    # Same GPU but for its price.
    assert model.chosen.cell.cluster == "here"
    effects = {effect.name: effect for effect in model.effects}
    assert effects["twice"].num_gpus == 2 * model.chosen.num_gpus
    assert effects["odd"].days is None
    assert effects["odd"].reason == f"makes {0.3 * model.chosen.num_gpus:g} GPUs"
    assert [even.point.cell.cluster for even in model.break_evens] == ["there"]
    assert model.break_evens[0].break_even_usd_per_hour == pytest.approx(2.0)
    assert (shown[5].done, shown[5].total) == (6, 10)  # and four more for what-ifs


def test_what_ifs_that_ask_the_same_are_searched_once(store):
    searched = []

    def search(asked):
        searched.append(asked.key)
        return failed(RuntimeError("stop")) if asked.num_gpus > 32 else answer()

    what_ifs = {"half more": WhatIf(size=1.5), "the same": WhatIf(size=1.5, network=1)}
    shown = []
    outcome = study_of(
        store, search, replace(STUDY, num_gpus=(32,), what_ifs=what_ifs), None, shown
    )
    assert sorted(set(searched)) == sorted(searched)
    assert (
        shown[-1].done == shown[-1].total == 4
    )  # the cell; half and twice its network, and one more
    reasons = {e.name: e.reason for e in outcome.models[0].effects if e.name in what_ifs}
    assert reasons == dict.fromkeys(what_ifs, "RuntimeError: stop")


def test_an_unchanged_study_is_answered_from_the_store(store):
    first = study_of(store)
    again = study_of(store, search=None)
    assert again.searched == 0
    assert again.stored == first.searched + first.stored
    assert again.models == first.models


def test_a_new_price_is_no_new_search_and_a_new_batch_is(store):
    study_of(store)
    cheaper = replace(STUDY, prices_usd_per_hour={"toy": 1.0})
    assert study_of(store, search=None, study=cheaper).searched == 0
    other = replace(STUDY, sequences_per_gpu=8)
    assert study_of(store, study=other).searched > 0


def test_an_interrupted_study_goes_on_where_it_was(store):
    searched = []

    def stopped(asked):
        if len(searched) == 2:
            raise KeyboardInterrupt
        searched.append(asked.key)
        return SEARCH(asked)

    with pytest.raises(KeyboardInterrupt):
        study_of(store, search=stopped)
    shown = []
    outcome = study_of(store, shown=shown)
    assert not {progress.cell.key for progress in shown} & set(searched)
    assert outcome.models == study_of(store).models


def test_a_failing_cell_does_not_stop_the_others_and_is_tried_again(store):
    def failing(asked):
        return failed(RuntimeError("boom")) if asked.num_gpus == 16 else SEARCH(asked)

    outcome = study_of(store, search=failing)
    assert [result.answer.status for result in outcome.results] == ["fits", "failed", "fits"]
    assert outcome.results[1].reason == "RuntimeError: boom"
    assert len(outcome.models[0].points) == 2
    again = study_of(store)
    assert [result.answer.status for result in again.results] == ["fits"] * 3


def test_a_cell_that_cannot_be_searched_says_why():
    impossible = cell()
    training = replace(impossible.question.training, precision="fp8")
    impossible = replace(impossible, question=replace(impossible.question, training=training))
    found = answer_cell(
        impossible, replace(SETTINGS, simulator=replace(SETTINGS.simulator, name="x")), print
    )
    assert found.status == "failed"
    assert "simulator.name" in (found.reason or "")


def test_nothing_fits_is_an_answer(store):
    settings = replace(SETTINGS, space={"name": "one", "knobs": {"micro_batch": {"choices": [8]}}})
    found = answer_cell(cell(8), settings, why_nothing_fits)
    assert found.status == "nothing_fits"
    assert found.final
    assert "No recipe fits" in (found.reason or "")
    # A study of which nothing fits has no answer, and says so.
    outcome = study_of(
        store,
        search=functools.partial(answer_cell, settings=settings, why_nothing=why_nothing_fits),
    )
    assert outcome.models[0].chosen is None
    assert not outcome.models[0].meets_all


def test_a_cluster_that_fails_too_often_has_no_point(store):
    hopeless = Reliability(0.1, checkpoint_write_s=30.0, restart_s=600.0)
    outcome = study_of(store, reliability=hopeless)
    assert [result.point for result in outcome.results] == [None] * 3
    assert "too often" in (outcome.results[0].reason or "")


def test_answers_come_back_as_they_were_kept(tmp_path):
    kept = AnswerStore(tmp_path, SETTINGS)
    kept.write(cell(), answer())
    assert kept.read(cell()) == answer()
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["cell"] == cell().key


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 0}', '{"format": 1, "answer": {"status": "fits"}}']
)
def test_what_is_no_kept_answer_is_asked_again(tmp_path, content):
    kept = AnswerStore(tmp_path, SETTINGS)
    kept.write(cell(), answer())
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    assert kept.read(cell()) is None


def test_what_might_come_out_otherwise_is_not_kept(tmp_path):
    kept = AnswerStore(tmp_path, SETTINGS)
    kept.write(cell(), failed(RuntimeError("boom")))
    kept.write(cell(16), replace(answer(), stopped="timeout"))
    assert list(tmp_path.iterdir()) == []


def answer_or_die(asked):
    if asked.num_gpus == 16:
        os._exit(1)
    return Answer("nothing_fits", reason=str(asked.num_gpus))


def test_a_cell_that_takes_its_worker_down_fails_alone():
    cells = [cell(8), cell(16), cell(32)]
    found = {each.num_gpus: got for each, got in answer_cells(cells, answer_or_die, n_jobs=2)}
    assert found[8].reason == "8"
    assert found[32].reason == "32"
    assert found[16].status == "failed"
    assert "out of memory?" in (found[16].reason or "")
