"""Searches of several samplers: what one found, the next goes on from."""

import pytest

from tests.optimizer import toy_search
from tests.optimizer.test_exact import answer, search
from trainscout.pruning import TACTICS
from trainscout.simulators.predictor.question.errors import InputError


def once(result):
    recipes = [trial.recipe for trial in result.trials if trial.status != "invalid"]
    return len(recipes) == len(set(recipes))


def test_by_default_the_answer_is_proved_where_there_are_bounds():
    auto, exact = search("auto"), search("exact")
    assert answer(auto.trials) == answer(exact.trials)
    assert auto.stopped == "proved"
    assert auto.certificate == exact.certificate


def test_without_bounds_a_sampler_searches():
    auto = toy_search.search("auto", n_trials=24, batch_size=8)
    assert (auto.stopped, auto.certificate) == ("n_trials", None)
    assert len([trial for trial in auto.trials if trial.status != "invalid"]) == 24
    assert auto.best


def test_a_proof_that_takes_too_long_is_left_to_a_sampler():
    settings = {"batch_size": 2, "proof_timeout_s": 1e-9, "top_k": 3}
    handed = search("auto", patience=20, min_trials=0, pruning=tuple(TACTICS), **settings)
    whole = search("exact", top_k=3)
    assert handed.stopped in ("converged", "proved")
    assert once(handed)
    proof = handed.certificate
    # What the sampler found counts for the proof.
    assert proof.simulated > 2
    assert proof.best == handed.best[0].values[0] >= whole.best[0].values[0] >= proof.bound
    assert proof.recipes == (
        proof.out_of_memory + proof.out_of_reach + proof.simulated + proof.open
    )


@pytest.mark.parametrize("pruning", [(), tuple(TACTICS)])
def test_bounds_close_the_gap_of_a_sampler(pruning):
    proved = search("random", prove=True, n_trials=24, pruning=pruning, top_k=3)
    exact = search("exact", top_k=3)
    assert proved.stopped == "proved"
    assert proved.certificate.proved
    assert answer(proved.best) == answer(exact.best)
    assert once(proved)
    counts = proved.counts()
    assert sum(counts.values()) == len(proved.trials)
    done = counts["ok"] + counts["tight"] + counts["oom"]
    assert proved.certificate.simulated == done


def test_what_is_spent_before_the_proof_is_what_was_asked_for():
    spent = search("auto", n_trials=4, batch_size=4)
    assert (spent.stopped, len(spent.trials)) == ("n_trials", 4)
    assert not spent.certificate.proved


def test_what_has_no_bounds_cannot_be_proved():
    with pytest.raises(InputError) as refused:
        toy_search.search("random", prove=True)
    assert refused.value.field == "search.prove"
