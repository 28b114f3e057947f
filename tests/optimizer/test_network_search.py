"""Searches on a congested network: bounds leave congestion out, and lose nothing by it."""

from dataclasses import replace

import pytest

from tests.optimizer import toy_search
from tests.optimizer.test_exact import small_question
from tests.simulators.jobs import MIXTRAL_8X7B
from tests.simulators.predictor.network.topology.test_network import fabric_named
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.bounding import BoundingSurvey
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import prepare_search
from trainscout.optimizer.survey import survey
from trainscout.optimizer.survey_choice import survey_once
from trainscout.optimizer.union import compile_space
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.registry import SimulatorSpec, get_simulator

FABRIC = fabric_named("leaf_spine", nics_per_leaf=2, oversubscription=4.0)
CONGESTED = SimulatorSpec(network=CongestedNetwork(NetworkChoice("flow"), FABRIC))
KNOBS = {
    "tp": {"powers_of_two_up_to": "nvlink_domain"},
    "pp": {"choices": [1, 2, 4]},
    "micro_batch": {"choices": [1, 2]},
    "recompute": {"choices": ["none", "full"]},
    "sp": {"choices": [True], "when": "tp > 1"},
}
EXPERTS = {**KNOBS, "ep": {"choices": [1, 2, 8]}, "etp": {"choices": [1]}}
CASES = {
    "dense": (small_question(nodes=4), {"knobs": KNOBS}),
    "experts": (small_question(MIXTRAL_8X7B, gib=60, nodes=4, batch=128), {"knobs": EXPERTS}),
}


def search(sampler, case, spec, **changes):
    question, space = CASES[case]
    asked = {"question": question, "space": space, "objective": "step_time", "simulator": spec}
    settings = {"n_trials": None, "pruning": (), "batch_size": 32, "top_k": 3}
    return toy_search.search(sampler, **(asked | settings | changes))


def bounded(question, space, spec):
    """Recipes of the space, each with its bound and its prediction in seconds."""
    surveyed, simulator = survey(compile_space(space, question)), get_simulator(spec)
    bounds = BoundingSurvey(surveyed, Objective(("step_time",)), spec).all_rows()
    for row in range(0, len(surveyed), max(1, len(surveyed) // 60)):
        job = question.job(surveyed.recipes[row])
        yield job, bounds.losses[row, 0], simulator.without_error_bar(job).step_time_s


@pytest.mark.parametrize("own", [2.0, None])
@pytest.mark.parametrize("case", CASES)
def test_switches_count_in_bounds_whatever_their_cluster_says(case, own):
    """On slow NICs that the declared switches let send at their rate."""
    question, space = CASES[case]
    cluster = replace(question.cluster, oversubscription=own, nic_gbps=20.0)
    fabric = fabric_named("leaf_spine", nics_per_leaf=8, oversubscription=1.0)
    spec = SimulatorSpec(network=CongestedNetwork(NetworkChoice("flow"), fabric))
    for _, bound_s, predicted_s in bounded(replace(question, cluster=cluster), space, spec):
        assert bound_s <= predicted_s


@pytest.mark.parametrize("case", CASES)
def test_no_recipe_is_faster_than_its_bound(case):
    question, space = CASES[case]
    # What the cluster says of itself would be counted in the white-box price.
    question = replace(question, cluster=replace(question.cluster, oversubscription=2.0))
    slowed = 0
    for job, bound_s, predicted in bounded(question, space, CONGESTED):
        assert predicted >= bound_s
        slowed += predicted > get_simulator("replay").without_error_bar(job).step_time_s
    assert slowed


@pytest.mark.parametrize("case", CASES)
def test_exact_and_screened_searches_find_the_best_of_all(case):
    truth = search("grid", case, CONGESTED)
    for sampler in ("exact", "random"):
        found = search(sampler, case, CONGESTED)
        assert [t.values for t in found.best] == [t.values for t in truth.best]
    alone = search("grid", case, SimulatorSpec())
    assert truth.best[0].values > alone.best[0].values


def test_workers_see_the_network():
    loky = search("random", "dense", CONGESTED, n_trials=4, executor=ExecutorOptions("loky", 1))
    serial = search("random", "dense", CONGESTED, n_trials=4)
    assert [t.values for t in loky.trials] == [t.values for t in serial.trials]


def test_a_search_goes_on_with_its_own_network_only():
    question, space = CASES["dense"]
    asked = AskedSearch(question, space, Objective(("step_time",)), SearchOptions())
    assert replace(asked, simulator=CONGESTED).identity() != asked.identity()


def test_links_that_are_not_there_are_refused_before_anything_is_simulated():
    question, space = CASES["dense"]
    network = CongestedNetwork(
        NetworkChoice("flow"), replace(FABRIC, link_health={"leaf0-spine9": 0.0})
    )
    with pytest.raises(InputError, match=r"leaf0-spine9=0\.0: is not in this cluster"):
        prepare_search(
            AskedSearch(
                question,
                space,
                Objective(("step_time",)),
                SearchOptions(),
                simulator=SimulatorSpec(network=network),
            )
        )


def test_a_search_takes_the_time_of_the_survey_that_checked_it(monkeypatch):
    question, space = CASES["dense"]
    monkeypatch.setattr("trainscout.optimizer.survey_choice._surveyed", [])
    asked = AskedSearch(question, space, Objective(("step_time",)), SearchOptions())
    made, before_s = survey_once(asked, None)
    again, spent_s = survey_once(asked, None)
    assert again is made
    assert before_s == 0 < spent_s
    # The next search of it, in a session, spends none of that.
    assert survey_once(asked, None) == (made, 0)
