import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.optimizer.fake_simulator import FakeSimulator, toy_question
from trainscout.optimizer.objective import Objective, non_dominated
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe


def test_values_and_directions():
    prediction = FakeSimulator().simulate(toy_question().job(Recipe(micro_batch=1)))
    objective = Objective(("mfu", "memory"))
    values = objective.values(prediction)
    assert values == (prediction.mfu, float(prediction.memory.peak_reserved_bytes))
    assert objective.losses(values) == (-prediction.mfu, values[1])


@pytest.mark.parametrize("name", ["cost", "step_time", "tokens_per_s", "mfu"])
def test_time_like_is_proportional_to_step_time(name):
    simulator, objective = FakeSimulator(), Objective((name,))
    slow = simulator.simulate(toy_question().job(Recipe()))
    fast = simulator.simulate(toy_question().job(Recipe(micro_batch=4)))
    ratio = slow.step_time_s / fast.step_time_s
    times = [objective.time_like(objective.values(p)) for p in (slow, fast)]
    assert times[0] / times[1] == pytest.approx(ratio)


@pytest.mark.parametrize("names", [("memory",), ("step_time", "memory")])
def test_time_like_is_none_where_time_does_not_decide(names):
    assert Objective(names).time_like((1.0,) * len(names)) is None


@pytest.mark.parametrize("names", [(), ("cost", "cost"), ("costs",)])
def test_wrong_names_are_refused(names):
    with pytest.raises(InputError):
        Objective(names)


points = st.lists(st.tuples(*[st.integers(0, 6)] * 2), max_size=30)


@given(points)
def test_front_is_what_nothing_dominates(losses):
    front = non_dominated(losses)

    def dominates(a, b):
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    undominated = {row for row in losses if not any(dominates(other, row) for other in losses)}
    assert {losses[index] for index in front} == undominated
    assert len(front) == len(undominated)
    assert [losses[i] for i in front] == sorted(losses[i] for i in front)
