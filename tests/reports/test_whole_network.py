"""A network of which half is counted: said with what the answer would be if it counted whole."""

from __future__ import annotations

from dataclasses import replace

from tests.reports.search_page.searches import QUESTION, searched, simulated
from tests.simulators.predictor.network.topology.test_network import fabric_named
from trainscout.optimizer.trial import Choices, SearchResult
from trainscout.reports.first_screen import first_screen
from trainscout.reports.search_page.page_data import page_record
from trainscout.reports.tracker_runs import search_note, size_params
from trainscout.reports.whole_network import (
    network_note,
    with_network_note,
    with_whole_network,
)
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED
from trainscout.simulators.registry import SimulatorSpec, get_simulator

SPEC = SimulatorSpec()
HALF = replace(QUESTION, cluster=replace(QUESTION.cluster, oversubscription=None))


def found(question: Question) -> SearchResult:
    """Two layouts, simulated as ``question`` says."""
    whole = searched().result
    best = tuple(
        replace(each, prediction=get_simulator(SPEC).simulate(question.job(each.recipe)))
        for each in whole.best
        if each.recipe in (Recipe(), Recipe(tp=8, micro_batch=4, recompute="selective"))
    )
    best = tuple(sorted(best, key=lambda each: each.prediction.step_time_s))  # type: ignore[union-attr]
    return replace(whole, best=best, choices=Choices(best))


def test_what_the_step_takes_where_the_network_counts_whole_is_simulated() -> None:
    recipe = Recipe()
    job = HALF.job(recipe)
    halved = get_simulator(SPEC).simulate(job)
    whole = simulated(recipe).step_time_s
    assert whole < halved.step_time_s
    (stated,) = (
        each
        for each in with_whole_network(halved, job, SPEC).assumptions
        if each.startswith(UNVALIDATED)
    )
    assert f"({whole / halved.step_time_s - 1:+.1%})" in stated
    assert with_whole_network(simulated(recipe), QUESTION.job(recipe), SPEC) == simulated(recipe)


def test_a_search_says_so_once_on_screen_page_and_where_it_is_tracked() -> None:
    noted = with_network_note(found(HALF), HALF, SPEC)
    note = network_note(noted)
    assert note is not None
    assert "50% of its rate is counted" in note
    assert "cluster.oversubscription=1 asks so" in note
    screen = " ".join(as_text(first_screen(noted, HALF.job, None)).split())
    assert screen.count("unvalidated") == 1
    assert "counted whole, the step takes" in screen
    page = page_record(searched(result=noted, question=HALF, shown=noted.best))
    assert page["search"]["network"] == note
    assert note not in page["search"]["notes"]
    assert f"**Network:** {note}." in search_note(noted, noted.best, HALF.job)
    assert size_params(HALF)["network"] == "unvalidated"
    assert "network" not in size_params(QUESTION)


def test_another_recipe_that_would_be_fastest_is_named() -> None:
    result = found(HALF)
    assert "stays the fastest shown that fits" in str(
        network_note(with_network_note(result, HALF, SPEC))
    )
    # As where memory is the objective: the slower comes first.
    turned = replace(result, best=result.best[::-1], choices=Choices(result.best[::-1]))
    note = str(network_note(with_network_note(turned, HALF, SPEC)))
    assert ", and tp1 pp1" not in note
    assert "and tp1 pp1" in note
    assert "stays the fastest shown that fits" in note
    # As if it were the faster where half is counted.
    swapped = tuple(
        replace(each, prediction=other.prediction)
        for each, other in zip(turned.best, result.best, strict=True)
    )
    turned = replace(turned, best=swapped, choices=Choices(swapped))
    note = str(network_note(with_network_note(turned, HALF, SPEC)))
    assert ", and tp1 pp1" in note
    assert "would be faster" in note


def test_declared_switches_are_said_to_count_whole() -> None:
    fabric = fabric_named("leaf_spine")
    flow = SimulatorSpec(network=CongestedNetwork(NetworkChoice("flow"), fabric))
    note = network_note(with_network_note(found(HALF), HALF, flow))
    assert note is not None
    assert note.endswith("its NICs count whole with network=, 50% without")


def test_nothing_is_said_where_the_network_counts_whole_or_nothing_fits() -> None:
    for question in (
        QUESTION,
        replace(HALF, cluster=replace(HALF.cluster, oversubscription=2.0)),
    ):
        result = found(question)
        assert with_network_note(result, question, SPEC) is result
    own = SimulatorSpec("ours:Simulator")
    assert with_network_note(result := found(HALF), HALF, own) is result
    empty = replace(found(HALF), best=())
    assert with_network_note(empty, HALF, SPEC) is empty
