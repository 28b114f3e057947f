"""The answer at other prices, without another search."""

from dataclasses import replace

import pytest

from tests.planning.fakes import SETTINGS, STUDY, answer, declarations, point
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import run_study
from trainscout.planning.points import at_price
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Target
from trainscout.simulators.predictor.question.errors import InputError


def scenarios(tmp_path, **lists):
    # "there" has the same GPUs under another name, at twice the price.
    study = replace(STUDY, clusters=("here", "there"), price_scenarios=lists)
    searched = []

    def search(cell):
        searched.append(cell)
        return answer(16 / cell.num_gpus)

    outcome = run_study(
        study,
        declarations(),
        Reliability(),
        AnswerStore(tmp_path, SETTINGS),
        search,
        n_jobs=1,
        on_progress=lambda _: None,
    )
    return outcome.models[0], len(searched)


def test_another_price_makes_another_answer_without_a_search(tmp_path):
    plain, searches = scenarios(tmp_path / "a")
    model, as_many = scenarios(tmp_path / "b", cheap={"other": 1.0}, dear={"other": 9.0})
    assert plain.scenarios == ()
    assert as_many == searches
    assert model.chosen.cell.cluster == "here"
    cheap, dear = model.scenarios
    assert (cheap.name, cheap.chosen.cell.cluster) == ("cheap", "there")
    assert cheap.chosen.usd == pytest.approx(cheap.chosen.gpu_hours * 1.0)
    # Nothing gains from a rise of what was dearer already.
    assert dear.chosen == model.chosen


def test_a_price_moves_dollars_and_nothing_else():
    before = point()
    after = at_price(before, 3 * before.cell.question.gpu.price_usd_per_hour)
    assert after.usd == pytest.approx(3 * before.usd)
    assert (after.days, after.gpu_hours, after.best) == (
        before.days,
        before.gpu_hours,
        before.best,
    )
    assert before.meets(Target(usd=2 * before.usd))
    assert not after.meets(Target(usd=2 * before.usd))


def test_a_price_that_is_none_is_refused_by_its_scenario():
    study = replace(STUDY, price_scenarios={"spot": {"other": -1.0}})
    with pytest.raises(InputError) as caught:
        study.check()
    assert caught.value.field == "sweep.price_scenarios.spot.other"


@pytest.mark.parametrize("prices", [2.0, None, ["h100"]])
def test_prices_without_gpus_are_refused(prices):
    with pytest.raises(InputError) as caught:
        replace(STUDY, price_scenarios={"spot": prices}).check()
    assert caught.value.field == "sweep.price_scenarios.spot"
