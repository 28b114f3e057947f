from dataclasses import replace
from itertools import permutations
from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.comparison.samples import predictions
from trainscout.reports.comparison import attribution
from trainscout.reports.comparison.attribution import attribute, changed_fields
from trainscout.simulators.predictor.question.recipe import Recipe

PLAIN = Recipe(tp=2, sp=True)


def effects(found) -> dict[tuple[str, ...], float]:
    return {change.fields: change.step_s for change in found.changes}


def test_independent_changes_bring_what_they_bring_alone():
    made = predictions(lambda r: 10 - 2 * (r.micro_batch - 1) - 0.5 * r.tp_comm_overlap)
    after = replace(PLAIN, micro_batch=2, tp_comm_overlap=True)
    found = attribute(PLAIN, after, made)
    assert effects(found) == {
        ("micro_batch",): pytest.approx(-2),
        ("tp_comm_overlap",): pytest.approx(-0.5),
    }
    assert found.orders == 2
    assert found.drawn is None
    for change in found.changes:
        assert change.alone_s == pytest.approx(change.step_s)
        assert change.least_s == pytest.approx(change.most_s)


def test_an_interaction_is_shared_equally():
    # Only both together bring something: the textbook case of the Shapley value.
    made = predictions(lambda r: 10 - 3 * (r.micro_batch == 2 and r.tp_comm_overlap))
    after = replace(PLAIN, micro_batch=2, tp_comm_overlap=True)
    found = attribute(PLAIN, after, made)
    assert list(effects(found).values()) == [pytest.approx(-1.5)] * 2
    assert {(c.least_s, c.most_s) for c in found.changes} == {(-3.0, 0.0)}
    assert {c.alone_s for c in found.changes} == {0.0}


def test_a_change_that_needs_another_comes_after_it():
    # Sequence parallelism needs tp > 1: only one order is possible.
    before, after = Recipe(), Recipe(tp=2, sp=True)
    made = predictions(lambda r: 10 - r.tp - 5 * r.sp)
    found = attribute(before, after, made)
    assert found.orders == 1
    by_field = {change.fields: change for change in found.changes}
    assert by_field[("sp",)].alone_s is None
    assert by_field[("sp",)].step_s == pytest.approx(-5)
    assert by_field[("tp",)].alone_s == pytest.approx(-1)


def test_the_two_counts_of_an_uneven_split_are_one_change():
    made = predictions(lambda r: 10.0)
    uneven = Recipe(pp=2, first_stage_layers=3, last_stage_layers=5)
    (change,) = attribute(Recipe(pp=2), uneven, made).changes
    assert set(change.fields) == {"first_stage_layers", "last_stage_layers"}


def test_fields_without_any_order_are_merged_and_named():
    before, after = Recipe(), Recipe(tp=2, micro_batch=2)
    made = predictions(lambda r: 10.0 - r.tp)
    made.launchable = lambda recipe: recipe in (before, after)
    merged = attribute(before, after, made)
    assert merged.together == (("tp", "micro_batch"),)
    assert effects(merged) == {("tp", "micro_batch"): pytest.approx(-1)}


def test_recompute_and_its_details_are_one_change():
    made = predictions(lambda r: 10.0 + (r.recompute == "full"))
    after = replace(PLAIN, recompute="full", recompute_layers=1)
    found = attribute(PLAIN, after, made)
    assert effects(found) == {("recompute", "recompute_layers"): pytest.approx(1)}


def test_recipes_that_do_not_fit_count_and_are_counted():
    made = predictions(lambda r: 10 - r.micro_batch, lambda r: -1.0 if r.micro_batch == 2 else 5)
    after = replace(PLAIN, micro_batch=2, tp_comm_overlap=True)
    found = attribute(PLAIN, after, made)
    assert effects(found)[("micro_batch",)] == pytest.approx(-1)
    assert (found.recipes, found.not_fitting) == (4, 2)


def test_parts_and_memory_are_shared_out_too():
    made = predictions(lambda r: 5.0 + 0.1 * r.pp, lambda r: 10 - r.micro_batch)
    after = replace(PLAIN, pp=2, micro_batch=2)
    found = {change.fields: change for change in attribute(PLAIN, after, made).changes}
    assert found[("pp",)].parts_s["bubble"] == pytest.approx(0.1)
    assert found[("pp",)].parts_s["compute"] == pytest.approx(0, abs=1e-12)
    assert found[("pp",)].memory_bytes == 0
    assert found[("micro_batch",)].memory_bytes == pytest.approx(2**30)


MANY = Recipe(
    tp=2, pp=2, vpp=2, micro_batch=2, sp=True, tp_comm_overlap=True, overlap_grad_reduce=True
)


def test_many_changes_are_sampled_with_an_error_that_holds(monkeypatch):
    monkeypatch.setattr(attribution, "MOST_RECIPES", 16)

    def step_s(recipe: Recipe) -> float:
        return 20 - recipe.tp - recipe.pp * recipe.vpp - 0.3 * recipe.micro_batch * recipe.sp

    made = predictions(step_s)
    found = attribute(Recipe(), MANY, made)
    assert found.drawn is not None
    assert 16 <= found.recipes < 2 ** len(found.changes)
    assert sum(effects(found).values()) == pytest.approx(step_s(MANY) - step_s(Recipe()))
    exact = brute_force(Recipe(), MANY, made, step_s)
    for change in found.changes:
        # Four standard errors: once in 16,000 by chance, and the draws are always the same.
        assert abs(change.step_s - exact[change.fields[0]]) <= 4 * change.error_s + 1e-9


def brute_force(before, after, made, step_s) -> dict[str, float]:
    """The mean over all orders, one by one, of those in which every recipe can be launched."""
    names = changed_fields(before, after)
    totals, count = dict.fromkeys(names, 0.0), 0
    extend(before, after, set(names), {}, totals, made, step_s)
    count = totals.pop("orders", 0)
    return {name: total / count for name, total in totals.items()}


def extend(recipe, after, left, gains, totals, made, step_s) -> None:
    if not left:
        totals["orders"] = totals.get("orders", 0) + 1
        for name, gain in gains.items():
            totals[name] += gain
        return
    for name in left:
        changed = replace(recipe, **{name: getattr(after, name)})
        if made.launchable(changed):
            gain = step_s(changed) - step_s(recipe)
            extend(changed, after, left - {name}, {**gains, name: gain}, totals, made, step_s)


CHOICES = st.fixed_dictionaries(
    {
        "tp": st.sampled_from((1, 2, 4)),
        "pp": st.sampled_from((1, 2)),
        "micro_batch": st.sampled_from((1, 2)),
        "sp": st.booleans(),
        "tp_comm_overlap": st.booleans(),
    }
)


@given(CHOICES, CHOICES, st.integers(0, 5))
def test_effects_are_the_mean_over_possible_orders(one, other, salt):
    before, after = Recipe(**one), Recipe(**other)

    def step_s(recipe: Recipe) -> float:
        seed = (recipe.tp, recipe.pp, recipe.micro_batch, recipe.sp, recipe.tp_comm_overlap, salt)
        return 1 + hash(seed) % 1000 / 100

    made = predictions(step_s)
    if before == after or not (made.launchable(before) and made.launchable(after)):
        return
    found = attribute(before, after, made)
    assert sum(effects(found).values()) == pytest.approx(step_s(after) - step_s(before))
    if all(len(change.fields) == 1 for change in found.changes):
        assert found.orders <= factorial(len(found.changes))
        exact = brute_force(before, after, made, step_s)
        for change in found.changes:
            assert change.step_s == pytest.approx(exact[change.fields[0]])
            assert change.least_s <= change.step_s + 1e-9
            assert change.most_s >= change.step_s - 1e-9


def test_all_orders_count_where_all_are_possible():
    after = replace(PLAIN, micro_batch=2, tp_comm_overlap=True, recompute="full")
    found = attribute(PLAIN, after, predictions(lambda r: 10.0))
    assert found.orders == len(list(permutations(range(3))))
