from dataclasses import replace

import pytest

from tests.reports.search_page.searches import QUESTION, fitting_trials
from trainscout.reports.search_page.sensitivity import CHANGES, sensitivity
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.registry import SimulatorSpec, get_simulator


def rows(**changed):
    found = sensitivity(fitting_trials(), replace(QUESTION, **changed), SimulatorSpec())
    return {row["name"]: row["ends"] for row in found["rows"]}, found


def test_every_change_is_the_best_recipe_simulated_again():
    found, _ = rows()
    cluster = QUESTION.cluster
    best = fitting_trials()[0].recipe
    for end, factor in zip(found["bandwidth between nodes"], (0.5, 2.0), strict=True):
        changed = replace(QUESTION, cluster=replace(cluster, nic_gbps=cluster.nic_gbps * factor))
        again = get_simulator("replay").simulate(changed.job(best))
        assert end["step_time_s"] == again.step_time_s
        assert end["cost_of_run_usd"] == again.cost_of_run_usd
    assert [end["label"] for end in found["bandwidth between nodes"]] == ["÷ 2", "× 2"]


def test_worse_comes_first():
    found, _ = rows()
    assert {change.name for change in CHANGES} < set(found)
    for worse, better in found.values():
        assert worse["cost_of_run_usd"] >= better["cost_of_run_usd"]


def test_price_moves_money_alone():
    found, _ = rows()
    best = fitting_trials()[0].prediction
    dear, cheap = found["price of a GPU-hour"]
    assert dear["cost_of_run_usd"] == pytest.approx(1.2 * best.cost_of_run_usd)
    assert cheap["cost_of_run_usd"] == pytest.approx(0.8 * best.cost_of_run_usd)
    assert dear["step_time_s"] == cheap["step_time_s"] == best.step_time_s


def test_error_bar_ends_where_the_interval_does():
    found, _ = rows()
    best = fitting_trials()[0].prediction
    high, low = found["error bar of the step"]
    assert (low["step_time_s"], high["step_time_s"]) == pytest.approx(best.interval_s)


def test_the_winner_is_the_fastest_of_those_compared():
    found, whole = rows()
    assert whole["compared"][0] == 1
    layouts = {(t.recipe.tp, t.recipe.pp, t.recipe.micro_batch) for t in fitting_trials()}
    assert len(whole["compared"]) == min(4, len(layouts))
    for name, ends in found.items():
        for end in ends:
            simulated = name not in ("price of a GPU-hour", "error bar of the step")
            assert (end["winner"] in whole["compared"]) == simulated


def test_another_recipe_can_win():
    """The slowest of all takes the first place: what is faster wins whatever changes."""
    trials = fitting_trials()
    backwards = [trials[-1], *trials[:-1]]
    found = sensitivity(backwards, QUESTION, SimulatorSpec())
    winners = {end["winner"] for row in found["rows"] for end in row["ends"]} - {None}
    assert 1 not in winners


def test_a_cluster_of_one_node_has_no_network_to_change():
    found, _ = rows(cluster=replace(QUESTION.cluster, num_nodes=1))
    assert "bandwidth between nodes" not in found
    assert "bandwidth inside a node" in found


def test_a_played_network_is_not_played_again():
    fabric = SwitchFabric("two_tiers", "made up", tiers=2, nics_per_leaf=8, hop_latency_s=1e-6)
    spec = SimulatorSpec(network=CongestedNetwork(NetworkChoice("flow"), fabric))
    found = sensitivity(fitting_trials()[:1], QUESTION, spec)
    names = [row["name"] for row in found["rows"]]
    assert "bandwidth between nodes" not in names
    assert "time of every kernel" in names
    assert "network=flow" in found["notes"][0]


def test_slow_simulators_are_not_asked_again():
    found = sensitivity(fitting_trials(), QUESTION, SimulatorSpec("traced"))
    assert [row["name"] for row in found["rows"]] == [
        "price of a GPU-hour",
        "error bar of the step",
    ]
    assert "traced" in found["notes"][0]


def test_changes_are_held_against_the_simulator_that_answers_for_them():
    """A promotion simulator was asked about the best recipe too, and says something else."""
    trials = fitting_trials()
    own = trials[0].prediction
    other = replace(own, step_time_s=own.step_time_s * 1.5, interval_s=None)
    promoted = replace(trials[0], prediction=other, searched_values=trials[0].values)
    found = sensitivity([promoted, *trials[1:]], QUESTION, SimulatorSpec())
    assert found["base"]["step_time_s"] == own.step_time_s
    assert "simulator=replay" in found["notes"][0]
    plain = sensitivity(trials, QUESTION, SimulatorSpec())
    assert plain["rows"] == found["rows"]
    assert plain["notes"] == []


def test_gpus_that_cost_nothing_have_no_price_to_change():
    trials = fitting_trials()
    free = replace(trials[0].prediction, cost_of_run_usd=0.0)
    found = sensitivity([replace(trials[0], prediction=free)], QUESTION, SimulatorSpec("traced"))
    assert [row["name"] for row in found["rows"]] == ["error bar of the step"]
    high, _ = found["rows"][0]["ends"]
    assert high["step_time_s"] > free.step_time_s


def test_the_time_alone_is_that_of_the_whole_prediction():
    simulator = get_simulator("replay")
    for trial in fitting_trials():
        job = QUESTION.job(trial.recipe)
        assert simulator.step_time_s(job) == simulator.simulate(job).step_time_s
