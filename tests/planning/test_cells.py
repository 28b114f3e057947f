"""Cells of a study, and when two of them ask the same."""

from dataclasses import replace

import pytest

from tests.planning.fakes import SETTINGS, STUDY, TRAINING, cell, declarations
from trainscout.planning import cells
from trainscout.planning.answer import answer_cell
from trainscout.planning.cells import digest, study_cells, what_if_cell
from trainscout.planning.study import Target, WhatIf
from trainscout.simulators.predictor.collectives.transport import DIRECTORY
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import (
    CALIBRATED,
    Calibration,
    calibration_text,
)
from trainscout.simulators.predictor.uncertainty.factors import Factors
from trainscout.simulators.registry import SimulatorSpec


def test_every_combination_is_a_cell():
    study = replace(STUDY, clusters=("here", "there"), nic_gbps=(200.0, 400.0))
    cells = study_cells(study, declarations())
    assert len(cells) == 2 * 2 * 3
    assert len({each.key for each in cells}) == len(cells)
    first = cells[0]
    assert (first.cluster, first.num_gpus) == ("here", 8)
    assert first.question.cluster.nic_gbps == 200.0
    assert first.fabric == "8 x 200 Gb/s"


def test_a_fabric_that_nobody_validated_is_another():
    study = replace(STUDY, oversubscription=(None, 1.0, 2.0), num_gpus=(8, 16))
    study.check()
    words = {each.fabric: None for each in study_cells(study, declarations())}
    assert [each.partition("Gb/s")[2] for each in words] == [", unvalidated", "", ", 2:1"]


def test_sizes_in_nodes_are_the_same_cells():
    by_nodes = replace(STUDY, num_gpus=(), num_nodes=(1, 2, 4))
    assert study_cells(by_nodes, declarations()) == study_cells(STUDY, declarations())


def test_without_sizes_clusters_have_their_own():
    study = replace(STUDY, num_gpus=())
    study.check()
    own = [each[0].num_gpus for each in declarations().clusters.values()]
    assert own[0] in {each.num_gpus for each in study_cells(study, declarations())} <= {*own}


def test_a_batch_for_each_size():
    study = replace(STUDY, sequences_per_gpu=4)
    batches = [
        each.question.training.global_batch_size for each in study_cells(study, declarations())
    ]
    assert batches == [32, 64, 128]


def test_a_cluster_is_searched_as_it_is_calibrated(tmp_path):
    """Of two clusters in a study, the one that names a calibration follows it in its days, its
    error bar and what is said of it; and its answer is another one to keep."""
    path = tmp_path / "ours.yaml"
    gpu = declarations().clusters["here"][1].name
    stated = Calibration((gpu,), Factors(compute_time=1.5, memory_time=1.5))
    path.write_text(calibration_text(stated), encoding="utf-8")
    settings = replace(SETTINGS, simulator=SimulatorSpec("replay"))
    plain = cell(8)
    cluster = replace(plain.question.cluster, calibration=str(path))
    ours = replace(plain, question=replace(plain.question, cluster=cluster))
    bests = [
        answer_cell(each, settings, lambda *_: "").best
        for each in (plain, ours, replace(plain, cluster="there"))
    ]
    came, calibrated, other = bests
    assert calibrated.step_time_s > 1.2 * came.step_time_s
    assert calibrated.interval_s[1] > came.interval_s[1]
    assert any(text.startswith(CALIBRATED) for text in calibrated.assumptions)
    assert other == came
    kept = digest(ours, settings)
    assert kept != digest(plain, settings)
    again = replace(stated, factors=Factors(compute_time=1.4))
    path.write_text(calibration_text(again), encoding="utf-8")
    assert digest(ours, settings) != kept


def test_prices_go_by_the_gpu():
    study = replace(STUDY, clusters=("here", "there"), prices_usd_per_hour={"other": 1.5})
    prices = {
        each.cluster: each.question.gpu.price_usd_per_hour
        for each in study_cells(study, declarations())
    }
    assert prices == {"here": 2.0, "there": 1.5}


def test_part_of_a_node_is_refused():
    with pytest.raises(InputError, match=r"num_gpus=12: is no number of whole nodes.*of 8"):
        study_cells(replace(STUDY, num_gpus=(12,)), declarations())


def test_what_ifs_change_one_thing():
    chosen = cell(16)
    bigger = what_if_cell(STUDY, declarations(), chosen, WhatIf(size=3))
    assert bigger == cell(48)
    faster = what_if_cell(STUDY, declarations(), chosen, WhatIf(network=2))
    assert faster == cell(16, nic_gbps=800.0)
    rounded = what_if_cell(STUDY, declarations(), cell(num_gpus=320), WhatIf(size=1.1))
    assert rounded.num_gpus == 352  # in binary 1.1 is a little more
    other = what_if_cell(STUDY, declarations(), chosen, WhatIf(cluster="there"))
    assert other == cell(16, "there")
    with pytest.raises(InputError, match="whole nodes"):
        what_if_cell(STUDY, declarations(), chosen, WhatIf(size=0.7))


def test_money_and_the_length_of_a_run_are_no_new_question():
    asked = cell()
    cheap = replace(asked.question.gpu, price_usd_per_hour=0.1)
    longer = replace(asked.question.training, tokens=9e12)
    same = replace(asked, question=replace(asked.question, gpu=cheap, training=longer))
    assert digest(same, SETTINGS) == digest(asked, SETTINGS)


@pytest.mark.parametrize(
    "other",
    [
        replace(SETTINGS, seed=1),
        replace(SETTINGS, space={**SETTINGS.space, "constants": {"zero_stage": 0}}),
        replace(SETTINGS, options=replace(SETTINGS.options, n_trials=5)),
        replace(SETTINGS, options=replace(SETTINGS.options, prove=True)),
        replace(SETTINGS, options=replace(SETTINGS.options, proof_timeout_s=900.0)),
        replace(SETTINGS, simulator=replace(SETTINGS.simulator, name="replay")),
    ],
    ids=["seed", "space", "n_trials", "prove", "proof_timeout_s", "simulator"],
)
def test_another_search_is_another_question(other):
    assert digest(cell(), other) != digest(cell(), SETTINGS)


def test_another_cell_or_other_code_is_another_question(monkeypatch):
    before = digest(cell(), SETTINGS)
    assert digest(cell(nic_gbps=200.0), SETTINGS) != before
    assert digest(cell(cluster="there"), SETTINGS) != before
    monkeypatch.setattr("trainscout.planning.cells.product_digest", lambda: "changed")
    assert digest(cell(), SETTINGS) != before


def test_what_collectives_are_fitted_to_is_part_of_what_answers(tmp_path, monkeypatch):
    assert DIRECTORY.is_relative_to(cells._ROOT)
    file = tmp_path / DIRECTORY.relative_to(cells._ROOT) / "roce.yaml"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(cells, "_ROOT", tmp_path)
    found = set()
    for coefficients in ("1.0", "2.0"):
        file.write_text(coefficients)
        found.add(cells.product_digest.__wrapped__())
    assert len(found) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "../up"}, "cannot name a directory"),
        ({"models": ()}, r"sweep.models=\[\]: is empty"),
        ({"num_nodes": (1,)}, "gives sizes twice"),
        ({"num_gpus": (8, 8)}, "repeats a value"),
        ({"nic_gbps": (0.0,)}, "sweep.nic_gbps=0.0: is out of range"),
        ({"prefer": "cheap"}, "did you mean 'cheapest'"),
        ({"targets": {"soon": Target(days=-1)}}, "sweep.targets.soon.days=-1"),
        ({"what_ifs": {"more": WhatIf(size=0)}}, "sweep.what_ifs.more.size=0"),
        ({"prices_usd_per_hour": {"toy": 0.0}}, "sweep.prices_usd_per_hour.toy=0.0"),
        ({"sequences_per_gpu": 0}, "sweep.sequences_per_gpu=0"),
    ],
)
def test_a_study_that_means_nothing_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        replace(STUDY, **wrong).check()


def test_training_is_what_the_study_declares():
    (first, *_) = study_cells(STUDY, declarations())
    assert first.question.training == TRAINING
