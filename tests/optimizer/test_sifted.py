"""A space that is not listed has the answer, and the account, of one that is."""

import signal
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.optimizer.fake_simulator import toy_question
from tests.optimizer.test_enumeration import TRICKY
from tests.optimizer.test_exact import EXPERTS, MIXTRAL_8X7B, MOE, SPACE, search, small_question
from tests.optimizer.test_union import BOTH
from tests.optimizer.test_union import asked as frameworks
from tests.simulators.jobs import TINY
from trainscout.optimizer.enumeration import blocks, leading
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.sifted import sifted_survey
from trainscout.optimizer.sifting_progress import Standing, UnprovedError
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.registry import SimulatorSpec

MUCH_LEFT_OUT = ("dense", "experts", "large")
COUNTED = ("points", "not_launchable", "equal", "equal_by_rule", "recipes", "proved", "best")
FULL = {**SPACE, "knobs": {**SPACE["knobs"], "recompute": {"choices": ["full"]}}}
SWITCHES = {
    **SPACE,
    "knobs": {
        **SPACE["knobs"],
        "zero_stage": {"choices": [0, 1, 2, 3]},
        "overlap_param_gather": {"choices": [False, True], "when": "zero_stage > 0"},
        "optimizer_states": {"choices": [None, "remainders"], "when": "zero_stage == 1"},
        "recompute_layers": {"choices": [None, 1, 2], "when": "recompute == 'full'"},
    },
    "constraints": ["micro_batch * (1 + zero_stage) < 16", "tp < 8 or zero_stage < 2"],
}


@pytest.fixture
def not_listed(monkeypatch):
    """Called, makes even small spaces be sifted."""

    def sift():
        monkeypatch.setattr("trainscout.optimizer.survey_choice.LISTED_POINTS", 0)
        monkeypatch.setattr("trainscout.optimizer.sifted._AT_ONCE", 4)
        monkeypatch.setattr("trainscout.optimizer.survey_choice._surveyed", [])

    return sift


CASES = {
    "dense": (small_question(), SPACE),
    "little memory": (small_question(gib=6.0), SPACE),
    # Nothing surely fits, or may.
    "tight": (small_question(gib=0.95), FULL),
    "too little memory": (small_question(gib=0.5), FULL),
    "experts": (small_question(MOE), {"name": "experts", "knobs": EXPERTS}),
    "switches": (small_question(gib=9.5), SWITCHES),
    # Without replicas ZeRO stages mean the same, and each leaves other optimizer states to choose.
    "one replica": (
        small_question(MOE, nodes=1),
        {
            "name": "states",
            "knobs": {
                **{name: knob for name, knob in EXPERTS.items() if name != "sp"},
                "tp": {"choices": [4, 8]},
                "zero_stage": {"choices": [0, 1, 2]},
                "sp": {"choices": [True], "when": "zero_stage < 2"},
                "optimizer_states": {"choices": ["remainders"], "when": "zero_stage == 1"},
            },
        },
    ),
    "large": (
        small_question(MIXTRAL_8X7B, gib=66, nodes=4, batch=128),
        {"name": "experts", "knobs": EXPERTS},
    ),
    "several frameworks": (frameworks(), BOTH),
}


@pytest.mark.parametrize("case", CASES)
def test_answer_and_account_are_those_of_the_listed_space(case, not_listed):
    question, space = CASES[case]
    listed = search("exact", question, space=space)
    not_listed()
    sifted = search("exact", question, space=space)
    assert told(sifted.best) == told(listed.best)
    assert told(sifted.tight) == told(listed.tight)
    assert told(sifted.choices.layouts) == told(listed.choices.layouts)
    for name in ("roomy", "simple"):
        ours, theirs = (getattr(each.choices, name) for each in (sifted, listed))
        assert ours == theirs or told([ours]) == told([theirs])
    ours, theirs = sifted.certificate, listed.certificate
    assert {n: getattr(ours, n) for n in COUNTED} == {n: getattr(theirs, n) for n in COUNTED}
    assert ours.out_of_memory + ours.out_of_reach + ours.simulated == ours.recipes
    assert ours.unlisted > ours.recipes / 3 or case not in MUCH_LEFT_OUT
    by_degrees = {(each.tp, each.pp): each for each in theirs.degrees}
    assert {(each.tp, each.pp): each.recipes for each in ours.degrees} == {
        degrees: each.recipes for degrees, each in by_degrees.items()
    }
    for each in ours.degrees:
        whole = by_degrees[each.tp, each.pp]
        assert each.may_fit >= whole.may_fit
        assert whole.bound is None or each.bound <= whole.bound


def told(trials):
    return [(trial.recipe, trial.values) for trial in trials]


@pytest.mark.parametrize("space", [SPACE, SWITCHES, TRICKY])
@pytest.mark.parametrize("block_points", [7, 1 << 17])
def test_what_leads_is_completed_to_all_points_once(space, block_points, monkeypatch):
    monkeypatch.setattr("trainscout.optimizer.enumeration.BLOCK_POINTS", block_points)
    compiled = compile_space(space, toy_question())
    walk = leading(compiled, {"micro_batch", "recompute", "tp"})
    assert walk.depth < len(compiled.knobs)
    found = [
        (tuple(point), recipe)
        for given in walk.blocks()
        for _, block in walk.complete(given)
        for point, recipe in zip(block.indices.tolist(), block.recipes, strict=True)
    ]
    expected = [
        (tuple(point), recipe)
        for block in blocks(compiled)
        for point, recipe in zip(block.indices.tolist(), block.recipes, strict=True)
    ]
    assert Counter(found) == Counter(expected)


# Of the large model not even the activations of any passes fit.
@pytest.mark.parametrize(("model", "recompute"), [(TINY, "full"), (MIXTRAL_8X7B, "none")])
def test_where_nothing_fits_the_closest_miss_is_listed(model, recompute, not_listed):
    not_listed()
    knobs = {**SPACE["knobs"], "recompute": {"choices": [recompute]}}
    result = search("exact", small_question(model, gib=0.5), space={"knobs": knobs})
    assert result.certificate.simulated == 1
    assert result.certificate.out_of_memory >= result.certificate.recipes - 1


def test_sifting_says_how_far_it_is():
    heard = []
    asked = compile_space(SWITCHES, small_question(gib=10.0))
    options = SearchOptions(sampler="exact")
    sifted_survey(asked, Objective(("cost",)), SimulatorSpec("replay"), options, heard.append)
    sampled = [each for each in heard if each.limit is None]
    sifted = heard[len(sampled) :]
    assert {each.limit for each in sifted} == {sampled[-1].considered}
    counts = [each.considered for each in sifted]
    assert counts == sorted(counts)
    assert counts[-1] == sifted[-1].limit
    assert sifted[-1].eta_s == 0
    assert sifted[-1].best.prediction.fits


@pytest.fixture
def interruptible():
    """Ctrl-C as a terminal has it: processes started in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("sampler", ["auto", "exact"])
def test_interrupted_while_sifting_it_says_the_best_that_is_known(sampler, not_listed):
    not_listed()

    def interrupt(progress):
        if progress.best is not None and progress.counted.endswith("sifted"):
            signal.raise_signal(signal.SIGINT)

    question, space = CASES["switches"]
    result = search(sampler, question, space=space, on_progress=interrupt)
    assert (result.stopped, result.certificate) == ("interrupted", None)
    assert result.best[0].prediction.fits
    assert result.trials[0].recipe == result.best[0].recipe
    assert search(sampler, question, space=space).stopped == "proved"


@pytest.mark.parametrize("case", ["dense", "several frameworks"])
@pytest.mark.parametrize("why", ["late", "too many open"])
def test_where_nothing_can_be_proved_a_sampler_goes_on_from_what_is_known(
    case, why, not_listed, monkeypatch
):
    not_listed()
    question, space = CASES[case]
    within_s = 1e-9 if why == "late" else 100
    monkeypatch.setattr("trainscout.optimizer.survey_choice.SOME_POINTS", 40)
    if why != "late":
        monkeypatch.setattr("trainscout.optimizer.sifted._MOST_OPEN", 0)
        with pytest.raises(InputError, match="bounds do not rule out"):
            search("exact", question, space=space)
    result = search(
        "auto", question, space=space, proof_timeout_s=within_s, n_trials=6, prove=True
    )
    assert (result.stopped, result.certificate) == ("n_trials", None)
    (note,) = [each for each in result.notes if each.startswith("some of space")]
    assert ("takes more than" if why == "late" else "hardly any") in note
    assert note.endswith(result.unproved)
    # What sifting simulated comes first, best first.
    first = [trial.values[0] for trial in result.trials if trial.status == "ok"][:2]
    assert first == sorted(first)
    assert result.best


def test_a_space_without_a_launchable_recipe_is_refused_with_the_rules():
    space = compile_space({**SPACE, "constants": {"cp": 7}}, small_question())
    for made in (
        survey,
        lambda each: sifted_survey(
            each, Objective(("step_time",)), SimulatorSpec("replay"), SearchOptions("exact")
        ),
    ):
        with pytest.raises(InputError, match="degrees_divide_world rejects"):
            made(space)


def test_a_late_search_has_no_time_left():
    shown = []
    late = Standing(SimpleNamespace(best=None), shown.append, -1.0, lambda: None)
    with pytest.raises(UnprovedError):
        late.sifted(1)
    assert shown[-1].eta_s == 0
