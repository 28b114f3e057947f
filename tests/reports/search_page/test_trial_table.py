import json

from hypothesis import given
from hypothesis import strategies as st

from tests.reports.search_page.searches import QUESTION, fitting_trials, other_trials
from trainscout.optimizer.trial import Trial
from trainscout.reports.search_page.trial_table import trial_table
from trainscout.simulators.predictor.question.recipe import Recipe


def everything():
    fitting = fitting_trials()
    return [*fitting, *other_trials(len(fitting))]


def read(column, row):
    code = column["code"][row]
    return None if code < 0 else column["values"][code]


def test_columns_say_what_the_trials_say():
    trials = everything()
    table = trial_table(trials, ("cost",), QUESTION.job)
    assert (table["count"], table["omitted"]) == (len(trials), 0)
    for row, trial in enumerate(trials):
        assert table["number"][row] == trial.number
        assert read(table["status"], row) == trial.status
        assert read(table["rule"], row) == trial.rule
        assert read(table["reason"], row) == trial.reason
        for knob in table["knobs"]:
            if knob["name"] != "dp":
                assert read(knob, row) == getattr(trial.recipe, knob["name"])


def test_only_knobs_that_differ_are_kept():
    names = [knob["name"] for knob in trial_table(everything(), (), QUESTION.job)["knobs"]]
    assert names[:3] == ["tp", "pp", "dp"]
    assert "schedule" not in names
    assert "cp" not in names


def test_figures_are_those_of_the_predictions():
    trials = everything()
    figures = trial_table(trials, ("cost",), QUESTION.job)["simulated"]
    predicted = [row for row, trial in enumerate(trials) if trial.prediction is not None]
    assert figures["row"] == predicted
    for at, row in enumerate(predicted):
        prediction = trials[row].prediction
        assert abs(figures["step_time_s"][at] / prediction.step_time_s - 1) < 1e-5
        assert figures["needed_bytes"][at] == prediction.memory.needed_bytes
        assert figures["headroom_bytes"][at] == prediction.memory.headroom_bytes
        assert abs(figures["cost_of_run_usd"][at] / prediction.cost_of_run_usd - 1) < 1e-5


def test_a_recipe_that_cannot_be_launched_has_no_dp():
    trials = [Trial(0, {}, Recipe(tp=3), "invalid", rule="r", reason="3 into 16")]
    table = trial_table([*trials, *fitting_trials()], (), QUESTION.job)
    assert table["words"][0] == "tp3 pp1 mb1 zero1"
    (dp,) = (knob for knob in table["knobs"] if knob["name"] == "dp")
    assert dp["code"][0] == -1


def test_of_too_many_trials_simulated_ones_are_kept():
    trials = [*other_trials(0)[1:], *(t for t in fitting_trials())]
    table = trial_table(trials, (), QUESTION.job, most=8)
    assert (table["count"], table["omitted"]) == (8, len(trials) - 8)
    assert len(table["simulated"]["row"]) == len(fitting_trials())


def test_of_too_many_simulated_trials_those_shown_are_kept():
    trials = fitting_trials()
    shown = trials[-2:]
    table = trial_table(trials, (), QUESTION.job, most=3, shown=shown)
    assert table["number"] == [trials[0].number, *(trial.number for trial in shown)]


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1))
def test_codes_give_back_what_was_coded(degrees):
    trials = [Trial(n, {}, Recipe(tp=tp), "pruned") for n, tp in enumerate(degrees)]
    table = trial_table(trials, (), QUESTION.job)
    for knob in table["knobs"]:
        if knob["name"] == "tp":
            assert [knob["values"][code] for code in knob["code"]] == degrees
    json.dumps(table)
