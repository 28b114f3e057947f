"""The rules as columns reject what they reject one by one, and read what they are said to."""

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import LLAMA, MOE, TINY, make_job
from trainscout.pruning.launchable import find_launchable
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import RULES, why_invalid

CHOICES = {
    "tp": [1, 2, 3, 8, 16],
    "pp": [1, 2, 4, 5],
    "cp": [1, 2, 3],
    "cp_comm_type": ["p2p", "a2a", "x"],
    "ep": [1, 2, 3],
    "etp": [None, 1, 2],
    "vpp": [1, 2, 3],
    "micro_batch": [1, 2, 5, 0],
    "recompute": ["none", "selective", "full", "x"],
    "recompute_layers": [None, 1, 3, 99],
    "recompute_taper": [0, 1, -1],
    "recompute_modules": [None, "mlp", "x", "operations", "operations+mlp"],
    "sp": [False, True],
    "zero_stage": [0, 1, 2, 3, 4],
    "overlap_grad_reduce": [False, True],
    "overlap_param_gather": [False, True],
    "tp_comm_overlap": [False, True],
    "overlap_moe_expert_parallel_comm": [False, True],
    "schedule": ["1f1b", "gpipe", "x"],
    "precision": [None, "fp8", "mxfp8", "x"],
    "first_stage_layers": [None, 2, 0],
    "last_stage_layers": [None, 2],
    "embedding_as_layer": [False, True],
    "loss_as_layer": [False, True],
    "nccl_algo": [None, "ring", "x"],
    "nccl_max_channels": [None, 8, 0],
    "use_tp_pp_dp_mapping": [False, True],
}
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


def test_every_field_is_drawn():
    assert set(CHOICES) == {field.name for field in fields(Recipe)}


@given(recipes, st.sampled_from([TINY, LLAMA, MOE]))
def test_rules_read_only_the_fields_that_are_declared(recipe, model):
    job = make_job(model)
    values = {name: getattr(recipe, name) for name in CHOICES}
    for name, rule in RULES.items():
        probed = replace(job, recipe=Probe(**values))
        READ.clear()
        broken = rule.broken(probed)
        assert set(rule.reads) >= READ, name
        if broken:
            break


@given(st.lists(recipes, min_size=1, max_size=30), st.sampled_from([TINY, LLAMA, MOE]))
def test_columns_reject_what_single_recipes_are_rejected_for(drawn, model):
    job: Job = make_job(model)
    job_of = lambda recipe: replace(job, recipe=recipe)  # noqa: E731
    valid, rejected = find_launchable(RecipeTable.of(drawn), job_of)
    alone = [why_invalid(job_of(recipe)) for recipe in drawn]
    assert valid.tolist() == [violation is None for violation in alone]
    for rule, entry in rejected.items():
        same = [violation for violation in alone if violation and violation.rule == rule]
        assert entry.count == len(same)
        assert entry.example in same
