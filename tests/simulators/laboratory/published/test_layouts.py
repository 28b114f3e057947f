from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import prediction
from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations
from trainscout.simulators.laboratory.published.layouts import rank_layouts, ranking, together
from trainscout.simulators.laboratory.published.replay import replay_rows

COSTS = st.lists(st.floats(1, 100), min_size=2, max_size=20, unique=True)


@pytest.mark.parametrize(
    ("predicted", "tau", "regret"),
    # Two of three pairs agree: (2 - 1) / 3. Predictions that are all equal order nothing.
    [([10, 20, 30], 1, 0), ([1, 4, 9], 1, 0), ([2, 1, 3], 1 / 3, 0.5), ([5, 5, 5], 0, 0)],
)
def test_pairs_in_the_same_order_against_all(predicted, tau, regret):
    found = ranking([1.0, 1.5, 3.0], predicted)
    assert (found.kendall_tau, found.selection_regret) == pytest.approx((tau, regret))


def test_sweeps_weigh_by_their_layouts():
    sweeps = [
        {"n": n, "kendall_tau": tau, "selection_regret": regret}
        for n, tau, regret in ((6, 1.0, 0.0), (2, 0.2, 0.1), (2, 0.4, 0.02))
    ]
    assert list(together(sweeps).values()) == [10, pytest.approx(0.72), 0.02, 0.1]


@given(COSTS, st.floats(0.1, 10))
def test_reversed_orders_are_opposite_and_a_common_factor_changes_nothing(costs, factor):
    assert ranking(costs, [factor * cost for cost in costs]).selection_regret == 0
    found = ranking(costs, [-cost for cost in costs])
    assert found.kendall_tau == pytest.approx(-1)
    assert found.selection_regret == pytest.approx(max(costs) / min(costs) - 1)


class ByTensorParallelism(TwoSeconds):
    """Thinks that every doubling of tensor parallelism costs a second."""

    def simulate(self, job):
        return prediction(float(job.recipe.tp))


def sweep(**changes):
    """Layouts that really got faster with tensor parallelism."""
    layouts = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2)]
    return [
        replace(
            RUN,
            id=f"tp{tp}pp{pp}",
            tp=tp,
            pp=pp,
            dp=64 // (tp * pp),
            sp=int(tp > 1),
            measured_iter_s=4 / tp + pp / 100,
            **changes,
        )
        for tp, pp in layouts
    ]


def rankings(rows):
    results = replay_rows(rows, declarations(), ByTensorParallelism(), lambda: None)
    return rank_layouts(results)


def test_rows_of_the_same_work_are_a_sweep():
    ((name, found),) = rankings(sweep()).items()
    assert "Llama3-8B, 64 GPUs, batch 128" in name
    assert found.n == 6
    assert found.kendall_tau < 0
    assert found.selection_regret == pytest.approx(4.01 / 0.51 - 1)


def test_other_batches_and_conditions_are_other_sweeps():
    rows = sweep()
    apart = [replace(row, id=f"{row.id}b", global_batch=256) for row in rows[:3]]
    assert [found.n for found in rankings([*rows, *apart]).values()] == [6]
    split = [replace(row, notes="dispatcher DeepEP") if row.pp == 2 else row for row in rows]
    assert rankings(split) == {}
    # Another release of the software is another condition.
    released = [
        replace(row, framework="NeMo 24.07" if row.pp == 2 else "NeMo 25.04") for row in rows
    ]
    assert rankings(released) == {}
    assert rankings([replace(row, framework="NeMo 25.04") for row in rows])


def test_a_layout_measured_twice_counts_once():
    rows = sweep()
    again = replace(rows[0], id="again", measured_iter_s=4.5)
    ((_, found),) = rankings([*rows, again]).items()
    assert found.n == 6
