"""The rules as columns reject what they reject one by one, and read what they are said to."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.knobs import impossible_value, values_of
from tests.simulators.jobs import LLAMA, MOE, TINY, make_job
from trainscout.pruning.launchable import find_launchable
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.question.validity import RULES, why_invalid

CHOICES = {
    name: [*values_of(knob), *([] if knob.kind is bool else [impossible_value(knob)])]
    for name, knob in KNOBS.items()
}
CHOICES["recompute_modules"].append("operations+mlp")
recipes = st.fixed_dictionaries(
    # Mostly the first choice, which is mostly right, so that late rules are reached too.
    {name: st.one_of(st.just(c[0]), st.sampled_from(c)) for name, c in CHOICES.items()}
).map(lambda values: Recipe(**values))


class Probe(Recipe):
    """Notes which fields are read."""

    def __getattribute__(self, name):
        if name in CHOICES:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


# Weights and adapters that no replica shards may be kept in fp32.
KEPT = [
    {},
    {"autocast": True},
    {"autocast": True, "autocast_throughout": True},
    {"lora": Lora(8), "fp32_adapters": True},
]


@given(recipes, st.sampled_from([TINY, LLAMA, MOE]), st.sampled_from(KEPT))
def test_rules_read_only_the_fields_that_are_declared(recipe, model, kept):
    job = make_job(model, training=kept)
    values = {name: getattr(recipe, name) for name in CHOICES}
    for name, rule in RULES.items():
        probed = replace(job, recipe=Probe(**values))
        READ.clear()
        broken = rule.broken(probed)
        assert set(rule.reads) >= READ, name
        if broken:
            break


@given(
    st.lists(recipes, min_size=1, max_size=30),
    st.sampled_from([TINY, LLAMA, MOE]),
    st.sampled_from(KEPT),
)
def test_columns_reject_what_single_recipes_are_rejected_for(drawn, model, kept):
    job: Job = make_job(model, training=kept)
    job_of = lambda recipe: replace(job, recipe=recipe)  # noqa: E731
    valid, rejected = find_launchable(RecipeTable.of(drawn), job_of)
    alone = [why_invalid(job_of(recipe)) for recipe in drawn]
    assert valid.tolist() == [violation is None for violation in alone]
    for rule, (rows, why) in rejected.items():
        same = [violation for violation in alone if violation and violation.rule == rule]
        assert rows.sum() == len(same)
        assert why in same
