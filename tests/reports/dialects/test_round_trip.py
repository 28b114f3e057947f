"""What is launched is what is read back: job -> launch script -> job."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.reports.launch_import.samples import BASE, framework, model
from tests.samples import GPU
from trainscout.pruning.equivalence import canonical
from trainscout.reports.launch import megatron_launch, torchtitan
from trainscout.reports.launch_import import read_launch
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.validity import why_invalid

CORE = framework("megatron_core")
MODELS = {
    name: model(name)
    for name in ("gpt22b", "llama3_8b", "mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3")
}
MODELS["deepseek_v3_mtp"] = replace(MODELS["deepseek_v3"], num_mtp_layers=1)
MODELS["llama4_maverick"] = model("llama4_maverick")
CLUSTER = Cluster("sixteen", 16, 8, 8, 400, "infiniband", "made up")
TRAINING = Training(global_batch_size=256, tokens=1e9)

DEGREES = st.sampled_from((1, 2, 4, 8))
RECIPES = st.builds(
    Recipe,
    tp=DEGREES,
    pp=st.sampled_from((1, 2, 4, 8)),
    cp=st.sampled_from((1, 1, 2)),
    cp_comm_type=st.sampled_from(("p2p", "a2a")),
    ep=DEGREES,
    etp=st.sampled_from((None, 1)),
    vpp=st.sampled_from((1, 1, 2, 3, 4)),
    micro_batch=st.sampled_from((1, 2)),
    recompute=st.sampled_from(("none", "selective", "full")),
    recompute_layers=st.sampled_from((None, 1)),
    recompute_modules=st.sampled_from((None, "mlp", "core_attn+mlp", "moe")),
    sp=st.booleans(),
    zero_stage=st.sampled_from((0, 1, 2, 3)),
    overlap_grad_reduce=st.booleans(),
    overlap_param_gather=st.booleans(),
    tp_comm_overlap=st.booleans(),
    precision=st.sampled_from((None, None, "fp8", "fp8_current", "fp16")),
    first_stage_layers=st.sampled_from((None, None, None, 2)),
    last_stage_layers=st.sampled_from((None, None, None, 2)),
    embedding_as_layer=st.booleans(),
    loss_as_layer=st.booleans(),
    use_tp_pp_dp_mapping=st.booleans(),
    nccl_algo=st.sampled_from((None, "ring", "tree")),
    nccl_max_channels=st.sampled_from((None, 16)),
)


def mended(recipe: Recipe, moe: bool) -> Recipe:
    """The recipe without what most often makes one impossible, so that many are left."""
    changes = {}
    if not moe:
        changes |= {"ep": 1, "etp": None}
    if recipe.tp == 1:
        changes |= {"sp": False, "tp_comm_overlap": False, "etp": None}
    elif moe or recipe.tp_comm_overlap:
        changes["sp"] = True
    if recipe.pp == 1:
        changes |= {"vpp": 1, "first_stage_layers": None, "last_stage_layers": None}
        changes |= {"embedding_as_layer": False, "loss_as_layer": False}
        changes["use_tp_pp_dp_mapping"] = False
    if recipe.first_stage_layers or recipe.last_stage_layers:
        changes |= {"embedding_as_layer": False, "loss_as_layer": False, "vpp": 1}
    if recipe.recompute != "selective":
        changes["recompute_modules"] = None
    if recipe.recompute != "full":
        changes["recompute_layers"] = None
    if recipe.zero_stage >= 2 and recipe.pp > 1:
        changes["zero_stage"] = 1
    elif recipe.zero_stage == 2:
        # Gradients that are sharded travel beside computation.
        changes["overlap_grad_reduce"] = True
    if recipe.zero_stage == 0 or not recipe.overlap_grad_reduce:
        changes["overlap_param_gather"] = False
    return replace(recipe, **changes)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=settings.default.max_examples // 2)
@given(recipe=RECIPES)
def test_megatron_scripts_say_their_job(tmp_path_factory, name, recipe):
    shape = MODELS[name]
    recipe = mended(recipe, shape.moe is not None)
    job = Job(shape, GPU, CLUSTER, TRAINING, recipe, CORE)
    assume(why_invalid(job) is None)
    command = megatron_launch(job)
    assume(not command.impossible)
    assume(not command.unsupported)
    script = tmp_path_factory.mktemp("launch") / "run.sh"
    script.write_text(command.script_text)
    read = read_launch(str(script), replace(BASE, framework=CORE), (), model, framework)
    assert read.reading.unknown == ()
    assert read.question.cluster.num_gpus == CLUSTER.num_gpus
    found = read.question.model
    assert found.qk_head_dim == shape.qk_head_dim
    # Megatron norms queries and keys of latent attention on its own switch.
    spelt = {"head_dim": found.head_dim, "qk_norm": found.qk_norm}
    named = {"name": shape.name, "source": shape.source}
    assert replace(found, **named) == replace(shape, **spelt)
    again = Question(found, GPU, CLUSTER, read.question.training, read.question.framework)
    assert again.training.global_batch_size == TRAINING.global_batch_size
    # Megatron counts whole steps.
    per_step = job.tokens_per_step
    assert TRAINING.tokens <= again.training.tokens < TRAINING.tokens + per_step
    assert again.job(read.recipe).sequence_length == job.sequence_length
    assert again.framework == CORE
    # A recipe's own precision is the training's of the command.
    assert again.training.precision == job.precision
    assert canonical(again.job(read.recipe)) == canonical(
        replace(job, training=again.training, recipe=replace(recipe, precision=None))
    )


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_30b_a3b"])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(zero_stage=3, recompute="selective", recompute_modules="operations"),
        Recipe(tp=4, sp=True, zero_stage=3, recompute="full", micro_batch=2),
        Recipe(tp=2, sp=True, zero_stage=2, overlap_grad_reduce=True, overlap_param_gather=True),
        Recipe(pp=4, zero_stage=1, overlap_grad_reduce=True, overlap_param_gather=True),
        Recipe(pp=4, vpp=2, zero_stage=1, overlap_grad_reduce=True, overlap_param_gather=True),
        Recipe(tp=2, sp=True, tp_comm_overlap=True, zero_stage=3),
    ],
)
def test_torchtitan_scripts_say_their_recipe(tmp_path, name, recipe):
    shape, software = MODELS[name], framework("torchtitan")
    job = Job(shape, GPU, CLUSTER, TRAINING, recipe, software)
    assert why_invalid(job) is None
    files = torchtitan.launch(job).files
    script = tmp_path / "torchtitan.sh"
    script.write_text(files["torchtitan.sh"])
    read = read_launch(str(script), replace(BASE, model=shape), (), model, framework)
    assert read.reading.unknown == ()
    assert read.question.training.global_batch_size == TRAINING.global_batch_size
    again = read.question.job(read.recipe)
    assert again.world_size == job.world_size
    assert canonical(again) == canonical(job)
    assert again.framework == replace(
        software, accumulate_grads_fp32=recipe.pp > 1, recompute_stops_early=False
    )
