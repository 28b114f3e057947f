"""Why nothing fits, with the proof of a search that has one."""

from tests.optimizer.fake_simulator import toy_question
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import run_search
from trainscout.reports.capacity.why import why_no_recipe

SPACE = {"name": "one", "knobs": {"micro_batch": {"choices": [1, 2]}}}


def test_an_exact_search_says_that_nothing_was_overlooked():
    asked = toy_question(num_nodes=1, memory_bytes=2**28)
    result = run_search(
        asked,
        SPACE,
        Objective(("step_time",)),
        SearchOptions(sampler="exact", pruning=(), n_trials=None, patience=None),
        executor=ExecutorOptions("serial"),
    )
    first, *_, last = why_no_recipe(result, asked.job).splitlines()
    assert first.startswith("No recipe fits")
    assert last.startswith("No recipe fits: all were simulated, or their bounds rule them out.")
