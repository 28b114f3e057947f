"""TorchTitan launches against its own configuration parser and pipeline split."""

import importlib.util
import shlex
import sys
from dataclasses import replace

import pytest
from hypothesis import given

from tests.reports.dialects.jobs import DENSE, EXPERTS, LATENT, jobs
from tests.samples import CLUSTER, GPU, TRAINING, job_of
from trainscout.reports.launch.torchtitan import MODULE, launch
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe

TITAN_MODELS = (DENSE, replace(DENSE, qk_norm=True, head_dim=128), *EXPERTS)
FSDP = Recipe(zero_stage=3, overlap_grad_reduce=True)


def dense_job(recipe: Recipe, **changes) -> Job:
    return replace(Job(DENSE, GPU, CLUSTER, TRAINING, recipe), **changes)


def words_of(job: Job) -> list[str]:
    """What follows ``-m torchtitan.train`` in the script, as a shell without variables set."""
    text = launch(job).files["torchtitan.sh"].replace("${ASSETS:-./assets/hf}", "assets")
    words = shlex.split(text[text.index("torchtitan.train") :].replace("\\\n", " "))[1:]
    return [word for word in words if "$" not in word]


def needs_torchtitan() -> None:
    pytest.importorskip("torchtitan")
    # Its modules of experts import it.
    pytest.importorskip("triton")


def parsed(job: Job):
    """The configuration that TorchTitan itself makes of module and arguments."""
    from torchtitan.config import ConfigManager

    spec = importlib.util.spec_from_loader(MODULE, loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(launch(job).files[f"{MODULE}.py"], MODULE, "exec"), module.__dict__)
    sys.modules[MODULE] = module
    try:
        return ConfigManager().parse_args(words_of(job))
    finally:
        del sys.modules[MODULE]


@given(jobs(TITAN_MODELS))
def test_torchtitan_takes_every_launch(job):
    needs_torchtitan()
    from torchtitan.distributed.parallel_dims import ParallelDims

    if launch(job).impossible:
        assert launch(job).files == {}
        return
    config = parsed(job)
    recipe = job.recipe
    dims = ParallelDims.from_config(config.parallelism, job.world_size)
    replicas = dims.dp_replicate * dims.dp_shard
    assert (dims.tp, dims.pp, dims.cp, replicas) == (recipe.tp, recipe.pp, recipe.cp, job.dp)
    # As Trainer.__init__ counts them.
    accumulated = config.training.global_batch_size // (
        config.training.local_batch_size * replicas
    )
    pipelined = 1
    if recipe.pp > 1:
        pipelined = (
            config.training.local_batch_size
            // config.parallelism.pipeline_parallel_microbatch_size
        )
    assert accumulated * pipelined == job.num_micro_batches
    check_model(job, config.model_spec.model)
    if recipe.pp > 1:
        assert split_of(config, dims) == job.layers_per_chunk


def check_model(job: Job, model) -> None:
    assert len(model.layers) == job.model.num_layers
    assert model.vocab_size == job.model.vocab_size
    kinds = [layer.moe is not None for layer in model.layers]
    assert kinds == [job.model.is_moe_layer(layer) for layer in range(job.model.num_layers)]
    for layer in model.layers:
        assert (layer.feed_forward is None) == (layer.moe is not None)


def split_of(config, dims) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage's chunks, as TorchTitan cuts the model."""
    from torchtitan.distributed import pipeline_parallel

    names = config.parallelism.module_fqns_per_model_part
    if names is None:
        stages, layers, first, last = pipeline_parallel._get_pipeline_metadata(
            dims, config.parallelism, config.model_spec.model
        )
        names = pipeline_parallel._generate_llm_fqn_per_model_part(stages, layers, first, last)
    counts = [sum(name.startswith("layers.") for name in part) for part in names]
    assert names[0][0] == "tok_embeddings"
    assert names[-1][-2:] == ["norm", "lm_head"]
    return tuple(tuple(counts[stage :: dims.pp]) for stage in range(dims.pp))


def test_parameters_are_those_of_the_declared_model():
    needs_torchtitan()
    import torch

    for model in (DENSE, replace(DENSE, tied_embeddings=True), LATENT, EXPERTS[2]):
        job = dense_job(FSDP, model=model)
        config = parsed(job).model_spec.model
        with torch.device("meta"):
            built = config.build()
        names = dict(built.named_parameters())
        attention = sum(
            value.numel()
            for name, value in names.items()
            if name.startswith("layers.0.attention.") and value.dim() == 2
        )
        assert attention == attention_parameters(model)
        assert names["tok_embeddings.weight"].numel() == model.vocab_size * model.hidden_size


def attention_parameters(model) -> int:
    """Elements of one layer's attention matrices."""
    heads, hidden = model.num_heads, model.hidden_size
    mla = model.mla
    if mla is None:
        return hidden * model.qk_head_dim * (2 * heads + 2 * model.kv_heads)
    compressed = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    expanded = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return hidden * heads * (model.qk_head_dim + mla.v_head_dim) + compressed + expanded


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_recomputation_is_chosen_last(recompute):
    words = words_of(dense_job(replace(FSDP, recompute=recompute)))
    assert words[-1] == f"activation-checkpoint:{recompute}"


@pytest.mark.parametrize(("stage", "reshard", "lacks"), [(1, "never", True), (3, "always", False)])
def test_sharding(stage, reshard, lacks):
    job = dense_job(Recipe(zero_stage=stage, overlap_grad_reduce=True))
    words = words_of(job)
    assert words[words.index("--parallelism.fsdp-reshard-after-forward") + 1] == reshard
    assert any("zero_stage" in lack for lack in launch(job).unsupported) == lacks
    # What is sharded is predicted beside computation without being asked for.
    unasked = replace(job, recipe=Recipe(zero_stage=stage))
    assert any("overlap" in lack for lack in launch(unasked).unsupported) == lacks


def test_replicas_that_share_nothing():
    words = words_of(dense_job(Recipe(zero_stage=0, tp=2)))
    assert words[words.index("--parallelism.data-parallel-replicate-degree") + 1] == "8"
    assert words[words.index("--parallelism.data-parallel-shard-degree") + 1] == "1"
    assert "--parallelism.no-enable-sequence-parallel" in words


def test_a_gpt_of_2020_is_not_among_its_models():
    reasons = " ".join(launch(job_of(FSDP)).impossible)
    for part in ("position=learned", "layernorm", "without gate", "biases", "dropout"):
        assert part in reasons


@pytest.mark.parametrize("precision", ["fp16", "fp8", "mxfp8"])
def test_it_trains_in_16_or_32_bits(precision):
    (reason,) = launch(dense_job(replace(FSDP, precision=precision))).impossible
    assert precision in reason


def test_experts_are_spread_whole():
    recipe = Recipe(ep=4, tp=2, sp=True, zero_stage=3, overlap_grad_reduce=True)
    assert any("etp=2" in why for why in launch(dense_job(recipe, model=EXPERTS[0])).impossible)
    whole = dense_job(replace(recipe, etp=1), model=EXPERTS[0])
    assert "--parallelism.expert-parallel-degree" in words_of(whole)


def test_modules_run_eagerly_only_where_declared():
    assert "--compile.enable" in words_of(dense_job(FSDP))
    eager = dense_job(FSDP, framework=Framework(fusion="eager"))
    assert "--compile.enable" not in words_of(eager)
    overlapped = replace(FSDP, tp=2, sp=True, tp_comm_overlap=True)
    words = words_of(replace(eager, recipe=overlapped))
    assert "--compile.enable-async-tensor-parallel" in words
