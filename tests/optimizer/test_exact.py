"""Exact search finds what the exhaustive search finds, and proves no more than is true."""

import functools
from dataclasses import replace

import pytest

from tests.optimizer import toy_search
from tests.simulators.jobs import LLAMA, MIXTRAL_8X7B, MOE, TINY, make_job
from trainscout.optimizer import bounding, survey_choice
from trainscout.optimizer.choices import CLEARLY_LESS, choices, count_switches, layout_of
from trainscout.optimizer.objective import MEASURES, Objective, non_dominated
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.samplers import make_sampler
from trainscout.optimizer.samplers.base import SearchSpec
from trainscout.optimizer.survey import survey
from trainscout.optimizer.trial import Trial
from trainscout.optimizer.union import compile_space
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec, get_simulator

SPACE = {
    "name": "small",
    "knobs": {
        "tp": {"powers_of_two_up_to": "nvlink_domain"},
        "pp": {"choices": [1, 2, 4]},
        "vpp": {"choices": [1, 3], "when": "pp > 1"},
        "micro_batch": {"choices": [1, 4]},
        "recompute": {"choices": ["none", "selective", "full"]},
        "sp": {"choices": [False, True], "when": "tp > 1"},
        "overlap_grad_reduce": {"choices": [False, True]},
    },
}
EXPERTS = {**SPACE["knobs"], "ep": {"choices": [1, 2, 4]}, "etp": {"choices": [None, 1]}}


def small_question(model=TINY, *, gib=80.0, **job):
    asked = make_job(model, **({"nodes": 2, "batch": 96} | job))
    gpu = replace(asked.gpu, memory_bytes=int(gib * 2**30))
    return Question(asked.model, gpu, asked.cluster, asked.training, asked.framework)


def search(sampler, question=None, *, space=SPACE, objective="step_time", **changes):
    settings = {"n_trials": None, "pruning": (), "batch_size": 8, "simulator": "replay"}
    asked = {"question": question or small_question(), "space": space, "objective": objective}
    return toy_search.search(sampler, **(settings | asked | changes))


def answer(trials):
    return [(trial.recipe, trial.values) for trial in trials]


CASES = {
    "dense": (small_question(), SPACE),
    "gated": (small_question(LLAMA, nodes=1, batch=48), SPACE),
    # Little more than the context and the libraries' buffers.
    "tight": (small_question(gib=1.4, nodes=1), SPACE),
    "experts": (small_question(MOE), {"knobs": EXPERTS}),
    "large": (small_question(MIXTRAL_8X7B, gib=60, nodes=4, batch=128), {"knobs": EXPERTS}),
}


@functools.cache
def truth(case):
    """Every launchable recipe with its prediction, as they lie in the space."""
    question, space = CASES[case]
    simulator = get_simulator("replay")
    recipes = list(survey(compile_space(space, question)).recipes)
    return [(recipe, simulator.without_error_bar(question.job(recipe))) for recipe in recipes]


def fitting(case, names):
    """Recipes that fit with their values, best first, ties as they lie in the space."""
    objective = Objective(names)
    found = [(recipe, objective.values(p)) for recipe, p in truth(case) if p.fits]
    return sorted(found, key=lambda entry: objective.losses(entry[1]))


# Every case by one measure, and one case by every measure.
@pytest.mark.parametrize(
    ("case", "objective"),
    [
        pytest.param(
            case,
            objective,
            marks=() if case == "dense" or objective == "step_time" else pytest.mark.deep,
        )
        for objective in ("step_time", "cost", "tokens_per_s", "mfu")
        for case in CASES
    ],
)
def test_the_best_are_those_of_the_whole_space(case, objective):
    question, space = CASES[case]
    expected = fitting(case, (objective,))
    exact = search("exact", question, space=space, objective=objective, top_k=5)
    assert answer(exact.best) == expected[:5]
    proof = exact.certificate
    assert proof.proved
    assert proof.gap == 0
    assert proof.best == proof.bound == expected[0][1][0]
    assert proof.recipes == len(truth(case))
    assert proof.out_of_memory + exact.counts()["oom"] <= len(truth(case)) - len(expected)
    assert proof.simulated == len(exact.trials)
    assert proof.recipes == proof.out_of_memory + proof.out_of_reach + proof.simulated
    assert proof.discarded_share > 0.8 or case != "large"


@pytest.mark.parametrize("case", CASES)
def test_the_front_is_that_of_the_whole_space(case):
    question, space = CASES[case]
    objective = ("step_time", "memory")
    expected = fitting(case, objective)
    front = [expected[index] for index in non_dominated([values for _, values in expected])]
    exact = search("exact", question, space=space, objective=objective)
    assert answer(exact.pareto) == front
    assert exact.certificate.proved
    assert len(exact.trials) < len(truth(case))


def summary(chosen):
    """What choices must agree in: equal recipes may stand for each other."""
    simple = chosen.simple and count_switches(RecipeTable.of([chosen.simple.recipe]))[0]
    return (
        [(layout_of(trial.recipe), trial.values) for trial in chosen.layouts],
        chosen.roomy and chosen.roomy.values,
        chosen.simple and (simple, chosen.simple.values),
    )


@pytest.mark.parametrize("case", CASES)
def test_the_choices_are_those_of_the_whole_space(case):
    question, space = CASES[case]
    every = [(p.step_time_s, recipe, p) for recipe, p in truth(case) if p.fits]
    every.sort(key=lambda entry: entry[0])
    ranked = [
        Trial(number, {}, recipe, "ok", values=(step_s,), prediction=p)
        for number, (step_s, recipe, p) in enumerate(every)
    ]
    expected = choices(ranked, Objective(("step_time",)))
    exact = search("exact", question, space=space, top_k=2)
    assert summary(exact.choices) == summary(expected)
    assert exact.certificate.proved
    if case == "large":
        best, roomy = exact.best[0].prediction.memory, exact.choices.roomy.prediction.memory
        free = CLEARLY_LESS * best.capacity_bytes
        assert roomy.headroom_bytes >= best.headroom_bytes + free
        assert len(exact.trials) < len(truth(case)) / 4


def test_the_precision_is_a_knob_of_the_mfu_too():
    knobs = {**SPACE["knobs"], "pp": [1], "vpp": [1], "precision": {"choices": ["bf16", "fp8"]}}
    space = {"knobs": knobs}
    question = small_question()
    if "fp8" not in question.gpu.peak_flops:
        question = replace(
            question,
            gpu=replace(question.gpu, peak_flops={**question.gpu.peak_flops, "fp8": 2e15}),
        )
    exact = search("exact", question, space=space, objective="mfu")
    grid = search("grid", question, space=space, objective="mfu")
    assert answer(exact.best) == answer(grid.best)


@pytest.mark.parametrize("name", [name for name in MEASURES if MEASURES[name].at is not None])
def test_measures_of_a_step_time_are_those_of_the_prediction(name):
    job = make_job(TINY, tp=2, recompute="full")
    prediction = get_simulator("replay").simulate(job)
    measure = MEASURES[name]
    assert measure.at(job, prediction.step_time_s) == pytest.approx(measure.read(prediction))


def test_the_number_of_workers_does_not_change_the_answer():
    alone = search("exact")
    together = search("exact", executor=ExecutorOptions("loky", 2))
    assert answer(alone.trials) == answer(together.trials)
    assert alone.certificate == together.certificate


def test_stopped_early_it_says_how_far_off_it_may_be():
    whole = search("exact", top_k=10)
    for n_trials in (4, 8):
        stopped = search("exact", top_k=10, n_trials=n_trials)
        proof = stopped.certificate
        assert not proof.proved
        assert proof.open > 0
        assert proof.recipes == (
            proof.out_of_memory + proof.out_of_reach + proof.simulated + proof.open
        )
        best = stopped.best[0].values[0]
        assert proof.bound <= whole.best[0].values[0] <= best
        assert proof.gap == pytest.approx((best - min(best, proof.bound)) / best)


def test_before_anything_is_bounded_everything_is_open():
    surveyed = survey(compile_space(SPACE, small_question()))
    options = SearchOptions(sampler="exact", pruning=())
    asked = SearchSpec(options, surveyed, Objective(("cost",)), 0, SimulatorSpec())
    proof = make_sampler(asked).proof.certificate()
    assert not proof.proved
    assert proof.open == proof.recipes == len(surveyed)
    assert proof.best is proof.bound is proof.gap is None


def test_listing_and_bounding_say_how_far_they_are(monkeypatch):
    monkeypatch.setattr(survey_choice, "_AT_A_GLANCE_S", 0.0)
    monkeypatch.setattr(bounding, "BLOCK_ROWS", 50)
    heard = []
    result = search("exact", on_progress=heard.append)
    by_count = {each.counted: each for each in heard}
    assert list(by_count) == ["points listed", "recipes sized", "recipes bounded", "recipes"]
    assert by_count["points listed"].considered == result.certificate.points
    sized = by_count["recipes sized"]
    assert sized.limit == result.certificate.recipes > sized.considered
    assert sized.considered % 50 == 0 < sized.considered
    bounded = by_count["recipes bounded"]
    assert bounded.limit == sized.limit - result.certificate.out_of_memory
    assert sized.eta_s >= 0 <= bounded.eta_s


def test_an_epsilon_spares_simulations_and_keeps_its_word():
    exact, loose = (search("exact", options={"epsilon": e}, top_k=3) for e in (0.0, 0.05))
    assert len(loose.trials) <= len(exact.trials)
    for rank in range(3):
        assert loose.best[rank].values[0] <= exact.best[rank].values[0] / 0.95
    assert loose.certificate.epsilon == 0.05


def test_a_resumed_search_repeats_nothing_and_proves_the_same(tmp_path):
    storage = str(tmp_path / "search.journal")
    whole = search("exact", top_k=10)
    search("exact", top_k=10, n_trials=8, storage=storage)
    resumed = search("exact", top_k=10, storage=storage, resume=True)
    assert resumed.resumed_trials == 8
    assert answer(resumed.trials) == answer(whole.trials)
    assert resumed.certificate == whole.certificate


def test_where_nothing_fits_the_closest_miss_is_simulated():
    result = search("exact", small_question(gib=0.5))
    assert [trial.status for trial in result.trials] == ["oom"]
    assert result.best == ()
    assert result.certificate.proved
    used = min(p.memory.capacity_bytes - p.memory.headroom_bytes for _, p in truth("dense"))
    memory = result.trials[0].prediction.memory
    assert memory.capacity_bytes - memory.headroom_bytes == used


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pruning": ("micro_batches",)}, "search.pruning"),
        ({"options": {"epsilons": 0}}, "search.options"),
        ({"options": {"epsilon": -1}}, "search.options.epsilon"),
    ],
)
def test_what_cannot_be_proved_is_refused(changes, field):
    with pytest.raises(InputError) as refused:
        search("exact", **changes)
    assert refused.value.field == field


def test_a_simulator_without_bounds_is_refused():
    with pytest.raises(InputError) as refused:
        toy_search.search("exact", question=small_question(), space=SPACE, pruning=())
    assert refused.value.field == "simulator.name"


def test_every_tensor_and_pipeline_degree_has_what_its_bounds_say():
    found = search("exact", *CASES["dense"][:1], space=SPACE)
    certificate = found.certificate
    assert sum(each.recipes for each in certificate.degrees) == certificate.recipes
    for each in certificate.degrees:
        values = [
            (prediction.step_time_s, prediction.memory.needed_bytes)
            for recipe, prediction in truth("dense")
            if (recipe.tp, recipe.pp) == (each.tp, each.pp)
        ]
        assert len(values) == each.recipes
        capacity_bytes = truth("dense")[0][1].memory.capacity_bytes
        assert each.least_memory_share * capacity_bytes <= min(b for _, b in values) * (1 + 1e-9)
        assert each.bound is not None
        assert each.bound <= min(step_s for step_s, _ in values) * (1 + 1e-9)


def in_halves(monkeypatch):
    """Recipes are bounded on two cores, however few."""
    monkeypatch.setattr("trainscout.optimizer.bounding.MANY_ROWS", 1)
    for module in ("optimizer.bounding", "simulators.predictor.io.second_core"):
        monkeypatch.setattr(f"trainscout.{module}.is_second_core", lambda: True)


@pytest.mark.parametrize("refined", [1, 1024])
@pytest.mark.parametrize("case", CASES)
def test_many_recipes_bounded_in_halves_and_roughly_are_proved_alike(case, refined, monkeypatch):
    question, space = CASES[case]
    whole = search("exact", question, space=space)
    in_halves(monkeypatch)
    monkeypatch.setattr("trainscout.optimizer.samplers.exact._REFINED", refined)
    halved = search("exact", question, space=space)
    assert answer(halved.trials) == answer(whole.trials)
    assert halved.certificate == whole.certificate


def test_an_interrupted_search_of_many_recipes_leaves_open_what_is(monkeypatch):
    ended = search("exact", n_trials=8)
    assert ended.certificate.open
    in_halves(monkeypatch)
    assert search("exact", n_trials=8).certificate == ended.certificate
