"""Measured times that no layout has are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.samples import prediction
from tests.simulators.laboratory.published.runs import RUN, replayable
from trainscout.simulators.laboratory.published.regularity import with_doubtful_states
from trainscout.simulators.laboratory.published.replay import Result


def result(name: str, measured: float, predicted: float, **changes: object) -> Result:
    row = replace(RUN, id=name, **changes)
    job = replayable(**changes).job
    return Result(row, job, prediction(predicted), measured, None, (), "")


def doubtful(*results: Result) -> list[str]:
    found = with_doubtful_states(results)
    return [each.row.id for each in found if any("doubtful" in a for a in each.assumptions)]


@pytest.mark.parametrize(("slow", "named"), [(1.4, []), (1.6, ["zero0"])])
def test_siblings_that_shard_another_way_are_not_half_as_much_apart(
    slow: float, named: list[str]
) -> None:
    one = result("zero1", 10.0, 9.0, dist_optimizer="zero1")
    assert doubtful(one, result("zero0", 10 * slow, 9.0, dist_optimizer="zero0")) == named
    # Unless so much is predicted.
    assert doubtful(one, result("zero0", 10 * slow, 12.0, dist_optimizer="zero0")) == []


@pytest.mark.parametrize(("larger", "named"), [(10.0, ["small"]), (16.0, [])])
def test_a_larger_micro_batch_takes_longer(larger: float, named: list[str]) -> None:
    small = result("small", 20.0, 10.0, micro_batch=1)
    # Half as many passes.
    assert doubtful(small, result("large", larger, 9.0, micro_batch=2)) == named
    # Unless a pass of both is predicted to take as long.
    assert doubtful(small, result("large", larger, 5.0, micro_batch=2)) == []


@pytest.mark.parametrize(("larger", "named"), [(11.0, ["small"]), (13.0, [])])
def test_a_larger_model_takes_longer(larger: float, named: list[str]) -> None:
    small = result("small", 10.0, 5.0, num_layers=12, model="125M")
    assert doubtful(small, result("notes", larger, 9.0, num_layers=12, notes="eager")) == []
    assert doubtful(small, result("large", larger, 9.0, num_layers=24, model="350M")) == named
    # Unless both are predicted to take as long, as what waits for the host does.
    assert doubtful(small, result("large", larger, 6.0, num_layers=24, model="350M")) == []


def test_other_rows_say_nothing() -> None:
    assert doubtful(result("a", 10.0, 9.0, tp=2), result("b", 90.0, 9.0, tp=4, pp=1)) == []
