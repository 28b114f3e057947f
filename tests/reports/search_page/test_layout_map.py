from dataclasses import replace

from tests.reports.search_page.searches import PROOF, QUESTION, fitting_trials, other_trials
from trainscout.optimizer.certificate import DegreesBound
from trainscout.reports.search_page.page_data import layout_map


def cells(trials, certificate=None):
    found = layout_map(trials, QUESTION.job, certificate)
    places = [(tp, pp) for pp in found["pp"] for tp in found["tp"]]
    return dict(zip(places, found["cells"], strict=True))


def everything():
    fitting = fitting_trials()
    return [*fitting, *other_trials(len(fitting))]


def test_a_cell_has_its_fastest_recipe_that_fits():
    found = cells(everything())
    best = found[1, 1]
    fits = [t for t in fitting_trials() if (t.recipe.tp, t.recipe.pp) == (1, 1)]
    assert len(fits) == 2
    assert best["outcome"] == "fits"
    assert best["step_time_s"] == min(t.prediction.step_time_s for t in fits)
    assert best["number"] == fits[0].number
    assert best["counts"] == {"fits": 2}


def test_every_way_not_to_fit_says_why():
    found = cells(everything())
    outcomes = {place: (cell["outcome"], cell.get("why")) for place, cell in found.items()}
    assert outcomes[2, 2] == ("memory", "does not fit: the closest recipe lacks 3.0 GiB")
    assert outcomes[1, 8] == ("memory", "needs at least 99 of 76 GiB")
    assert outcomes[8, 2] == ("slower", "no better")
    assert outcomes[2, 4] == ("pruned", "means the same")
    assert outcomes[3, 1] == ("invalid", "3 into 16")
    assert outcomes[4, 4] == ("failed", "division by zero")
    assert outcomes[8, 8] == ("unasked", "no recipe of it was proposed")


def test_one_that_fits_outweighs_those_that_do_not():
    fits, missed = fitting_trials()[0], other_trials(50)[0]
    missed = replace(missed, recipe=replace(fits.recipe, micro_batch=8))
    (cell,) = cells([missed, fits]).values()
    assert cell["outcome"] == "fits"
    assert cell["counts"] == {"fits": 1, "memory": 1}


def test_bounds_say_why_a_layout_was_not_simulated():
    assert "proposed" in cells(everything(), PROOF)[8, 8]["why"]
    bounds = (
        DegreesBound(8, 8, recipes=5, may_fit=2, bound=12.5, least_memory_share=0.8),
        DegreesBound(16, 1, recipes=7, may_fit=0, bound=None, least_memory_share=1.31),
    )
    found = cells(everything(), replace(PROOF, degrees=bounds))
    assert found[8, 8]["outcome"] == "slower"
    assert "12.5 USD" in found[8, 8]["why"]
    assert found[16, 1]["outcome"] == "memory"
    assert "131%" in found[16, 1]["why"]
    assert found[16, 8]["outcome"] == "invalid"
    # What was simulated says more than its bound.
    assert found[1, 1]["outcome"] == "fits"
