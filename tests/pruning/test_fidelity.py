"""Pruning never changes the answer of a simulator that keeps the premises."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.optimizer.fake_simulator import SPACE, FakeSimulator, toy_question
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.pruning import TACTICS, apply_tactics
from trainscout.pruning.tactic import History, Known, resolves_others_rank

QUESTION = toy_question()
SMALL = {
    "knobs": {
        **SPACE["knobs"],
        "tp": {"choices": [1, 4]},
        "pp": {"choices": [1, 4]},
        "vpp": {"choices": [1, 2], "when": "pp > 1"},
        "recompute_layers": {"choices": [None, 1], "when": "recompute == 'full' and pp < 8"},
    }
}
RECIPES = survey(compile_space(SMALL, QUESTION)).recipes


class RandomSimulator(FakeSimulator):
    """The closed form with its coefficients drawn, within what the premises allow.

    Times are scaled part by part and jittered by less than the stated quantisation gain;
    capacity is drawn; memory stays the fake's, which is ordered as the premises say.
    """

    def __init__(self, seed):
        draw = random.Random(seed)
        self.scale = {
            part: 10 ** draw.uniform(-2, 2)
            for part in FakeSimulator().step_parts_s(QUESTION.job(RECIPES[0]))
        }
        self.capacity_units = draw.uniform(5, 80)
        self.jitter = {replace(r, zero_stage=0): draw.uniform(0.96, 1.0) for r in RECIPES}

    def step_parts_s(self, job):
        parts = super().step_parts_s(job)
        scaled = {part: seconds * self.scale[part] for part, seconds in parts.items()}
        # Only what sharding leaves alone may wobble, and equally for both of its twins.
        wobble = self.jitter[replace(job.recipe, zero_stage=0)]
        return {
            part: seconds * (1 if part in ("optimizer", "dp_communication") else wobble)
            for part, seconds in scaled.items()
        }


@given(st.integers(0, 10**6), st.integers(1, 10))
@pytest.mark.parametrize("name", [*TACTICS, "all"])
def test_the_best_recipes_are_those_of_the_exhaustive_search(name, seed, top):
    tactics = list(TACTICS.values()) if name == "all" else [TACTICS[name]]
    simulator = RandomSimulator(seed)
    order = list(RECIPES)
    random.Random(seed + 1).shuffle(order)
    predictions = {recipe: simulator.simulate(QUESTION.job(recipe)) for recipe in RECIPES}
    exhaustive = sorted(p.step_time_s for p in predictions.values() if p.fits)[:top]

    history, simulated = History(top), []
    for recipe in order:
        verdict = apply_tactics(QUESTION.job(recipe), history, tactics)
        prediction = predictions[recipe]
        if verdict is not None:
            # Said to be out of memory: it is. Said to fit: it does.
            assert verdict.fits == prediction.fits
            if not verdict.fits:
                history.add(Known(recipe, fits=False))
            continue
        simulated.append(recipe)
        history.add(Known(recipe, prediction.fits, prediction, prediction.step_time_s))

    found = sorted(predictions[r].step_time_s for r in simulated if predictions[r].fits)[:top]
    assert found == exhaustive


@pytest.mark.parametrize("name", list(TACTICS))
def test_each_tactic_saves_simulations_somewhere(name):
    saved = 0
    for seed in range(8):
        simulator, history = RandomSimulator(seed), History(5)
        order = sorted(RECIPES, key=resolves_others_rank)
        if seed % 2:
            random.Random(seed).shuffle(order)
        for recipe in order:
            if apply_tactics(QUESTION.job(recipe), history, [TACTICS[name]]) is not None:
                saved += 1
                continue
            prediction = simulator.simulate(QUESTION.job(recipe))
            history.add(Known(recipe, prediction.fits, prediction, prediction.step_time_s))
    assert saved > 0
