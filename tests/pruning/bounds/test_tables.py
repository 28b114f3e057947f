"""No row of a table is bounded above its prediction by what the other rows are."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.pruning.questions import TEACHER, jobs
from tests.simulators.jobs import LLAMA, MOE
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.tuning import Distillation
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

EXPERTS = replace(MOE, name="teacher", num_layers=48, vocab_size=LLAMA.vocab_size)
# Steps are mostly theirs.
LARGE = replace(TEACHER, num_layers=48, hidden_size=2048)
TEACHERS = (Distillation(LARGE), Distillation(EXPERTS), Distillation(LARGE, sharded=False))
# What rows differ in: each may be that of another row.
CUTS = ((1, 1), (1, 1), (2, 1), (4, 1), (2, 2), (3, 2))
CHANGES = {
    "tp": (1, 2),
    "micro_batch": (1, 2, 4),
    "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full"),
    "nccl_algo": (None, "ring", "tree"),
    "nccl_max_channels": (None, 4),
    "overlap_grad_reduce": (True, False),
    "cuda_graphs": (None, True),
    "grad_dtype": (None, "bf16", "fp32"),
}


@st.composite
def tables(draw):
    """A job, and 2 to 5 recipes that its question may have beside its own."""
    job = draw(jobs(schedule=("1f1b",), ends=("even",), pp=(1, 2, 4), zero_stage=(0, 1, 1)))
    model = job.model
    of_words = not model.num_mtp_layers and model.pooled is None and model.diffusion is None
    if of_words and draw(st.booleans()):
        teacher = draw(st.sampled_from(TEACHERS))
        training = replace(job.training, distillation=teacher, dpo=None, packed_lengths=())
        training.check_for(model)
        job = replace(job, training=training)
        assume(why_invalid(job) is None)
    recipes = [job.recipe]
    while len(recipes) < 5 and draw(st.integers(0, 7)):
        names = draw(st.lists(st.sampled_from(list(CHANGES)), max_size=2))
        changes = {name: draw(st.sampled_from(CHANGES[name])) for name in names}
        if draw(st.booleans()):
            changes |= dict(zip(("pp", "vpp"), draw(st.sampled_from(CUTS)), strict=True))
        recipe = replace(draw(st.sampled_from(recipes)), **changes)
        if recipe not in recipes and why_invalid(replace(job, recipe=recipe)) is None:
            recipes.append(recipe)
    assume(len(recipes) > 1)
    return job, draw(st.permutations(recipes))


@settings(max_examples=3 * settings.default.max_examples)
@given(tables())
def test_no_row_of_a_table_is_bounded_above_its_prediction(table):
    job, recipes = table
    found = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(recipes))
    for row, recipe in enumerate(recipes):
        prediction = ReplaySimulator().without_error_bar(replace(job, recipe=recipe))
        memory = prediction.memory
        assert found.step_time_s[row] <= prediction.step_time_s
        assert found.memory_bytes[row] <= memory.peak_reserved_bytes
        assert found.used_bytes[row] <= memory.capacity_bytes - memory.headroom_bytes
