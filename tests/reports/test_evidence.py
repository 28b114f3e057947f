from dataclasses import replace

import pytest

from tests.samples import job_of, prediction
from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.evidence import Grade, evidence_of
from trainscout.simulators.predictor.question.recipe import Recipe


def graded(shares, gpu=None):
    job = job_of(Recipe(tp=2))
    return evidence_of(
        replace(prediction(), evidence_share=shares), replace(job, gpu=gpu) if gpu else job
    )


@pytest.mark.parametrize(
    ("shares", "grade"),
    [
        ({"measured": 1.0}, Grade.MEASURED),
        ({"measured": 0.96, "fitted": 0.04}, Grade.MEASURED),
        ({"measured": 0.94, "fitted": 0.06}, Grade.FITTED),
        ({"measured": 0.0, "fitted": 0.99, "estimated": 0.01}, Grade.FITTED),
        ({"measured": 0.5, "fitted": 0.2, "estimated": 0.3}, Grade.ESTIMATED),
        ({"measured": 0.0, "fitted": 0.0, "estimated": 0.0}, Grade.ESTIMATED),
    ],
)
def test_time_is_as_good_as_its_weakest_notable_price(shares, grade):
    assert graded(shares).time.grade is grade


def test_the_reason_names_the_shares():
    stated = graded({"measured": 0.0, "fitted": 0.75, "estimated": 0.25}).time.reason
    assert stated.endswith("priced 75.0 % fitted, 25.0 % estimated")


def test_a_shipped_price_is_assumed_until_another_is_given():
    gpu = load_catalogue().gpus["h100"]
    shares = {"measured": 1.0}
    assert graded(shares, gpu).price.grade is Grade.ASSUMED
    given = graded(shares, replace(gpu, price_usd_per_hour=gpu.price_usd_per_hour * 1.5))
    assert given.price.grade is Grade.GIVEN
    # Nobody said that this GPU's price is an assumption.
    assert graded(shares, replace(gpu, sources={})).price.grade is Grade.GIVEN


def test_every_shipped_price_admits_to_be_assumed():
    for gpu in load_catalogue().gpus.values():
        assert graded({"fitted": 1.0}, gpu).cost.grade is Grade.ASSUMED


def test_cost_is_no_better_than_time_and_price():
    own = replace(load_catalogue().gpus["h100"], sources={})
    assert graded({"estimated": 1.0}, own).cost.grade is Grade.ESTIMATED
    assert graded({"fitted": 1.0}, own).cost.grade is Grade.FITTED


def test_memory_is_surer_allocated_than_in_all():
    evidence = graded({"measured": 1.0})
    assert (evidence.allocated.grade, evidence.memory.grade) == (Grade.FITTED, Grade.ESTIMATED)


def test_figures_are_graded_under_their_json_names():
    figures = graded({"fitted": 1.0}).of_figures()
    shown = prediction().to_dict()
    assert figures["step_time_s"] == "fitted"
    assert {name for name in figures if name in shown or name in shown["memory"]} == set(figures)
