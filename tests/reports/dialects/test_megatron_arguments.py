"""Every command against Megatron-LM's argument definitions and Megatron-Core's own checks."""

import argparse
import dataclasses
import warnings
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import assume, given

from tests.reports.dialects.jobs import jobs
from tests.reports.dialects.megatron_parser import parser, table
from tests.samples import MOE_MODEL
from tests.simulators.jobs import make_job
from trainscout.reports.dialects import megatron_zero_bubble
from trainscout.reports.dialects.megatron_lm import settings_of
from trainscout.reports.dialects.setting import command_options
from trainscout.reports.launch.directory import megatron_launch
from trainscout.simulators.predictor.question.job import Job

PARSER = parser()
# Schedules that halve the backward pass are those of another project, which forks it.
FORKED = {row.name for row in megatron_zero_bubble.ARGUMENTS}
# Names that Megatron-LM gives to the transformer configuration under another name
# (arguments.py, core_transformer_config_from_args, same commit).
RENAMED = {
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}


def parsed(job: Job) -> argparse.Namespace:
    options = command_options(settings_of(job))
    assume(not FORKED & {name for name, *_ in options})
    return PARSER.parse_args([word for option in options for word in option])


@given(jobs())
def test_megatron_takes_every_argument(job):
    args = parsed(job)
    recipe = job.recipe
    world = job.world_size
    assert world % (recipe.tp * recipe.pp * recipe.cp) == 0
    degrees = (args.tensor_model_parallel_size, args.pipeline_model_parallel_size)
    assert degrees == (recipe.tp, recipe.pp)
    replicas = world // (
        args.tensor_model_parallel_size
        * args.pipeline_model_parallel_size
        * args.context_parallel_size
    )
    micro_batches = args.global_batch_size // (args.micro_batch_size * replicas)
    assert micro_batches == job.num_micro_batches
    # Megatron counts the end of a document on top.
    assert args.vocab_size + 1 == job.model.vocab_size
    assert args.max_position_embeddings >= args.seq_length == job.sequence_length


@given(jobs())
def test_one_way_to_split_the_pipeline(job):
    # validate_args, the same file: at most one of the three.
    given_ways = [
        name
        for name in (
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "pipeline_model_parallel_layout",
        )
        if hasattr(parsed(job), name)
    ]
    assert len(given_ways) <= 1


def transformer_config(args: argparse.Namespace):
    """What Megatron-LM makes of its arguments, built by Megatron-Core, which checks them."""
    import torch
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig
    from packaging.version import Version as PkgVersion
    from torch.nn import functional

    cls = MLATransformerConfig if hasattr(args, "multi_latent_attention") else TransformerConfig
    names = {field.name for field in dataclasses.fields(cls)}
    values = {RENAMED.get(name, name): value for name, value in vars(args).items()}
    values = {name: value for name, value in values.items() if name in names}
    if hasattr(args, "swiglu"):
        values |= {"gated_linear_unit": True, "activation_func": functional.silu}
    if "cp_comm_type" in values:
        (values["cp_comm_type"],) = values["cp_comm_type"]
    values["virtual_pipeline_model_parallel_size"] = virtual_stages(args)
    values["pipeline_dtype"] = torch.bfloat16
    values.pop("attention_backend")
    # Needs Transformer Engine's kernels installed.
    values.pop("moe_permute_fusion", None)
    with (
        warnings.catch_warnings(),
        mock.patch(
            # Some checks ask which Transformer Engine there is; here there is none.
            "megatron.core.utils._te_version",
            PkgVersion("2.8.0"),
        ),
    ):
        warnings.simplefilter("ignore")
        return cls(**values)


def virtual_stages(args: argparse.Namespace) -> int | None:
    """validate_args, the same file."""
    if hasattr(args, "pipeline_model_parallel_layout"):
        stages = args.pipeline_model_parallel_layout.count("|") + 1
        count = stages // args.pipeline_model_parallel_size
    elif hasattr(args, "num_virtual_stages_per_pipeline_rank"):
        count = args.num_virtual_stages_per_pipeline_rank
    elif hasattr(args, "num_layers_per_virtual_pipeline_stage"):
        stage = args.num_layers // args.pipeline_model_parallel_size
        count = stage // args.num_layers_per_virtual_pipeline_stage
    else:
        count = 1
    return count if count > 1 else None


@given(jobs())
def test_megatron_core_accepts_what_is_called_possible(job):
    pytest.importorskip("megatron.core")
    if megatron_launch(job).impossible:
        return
    args = parsed(job)
    config = transformer_config(args)
    assert (config.virtual_pipeline_model_parallel_size or 1) == job.recipe.vpp
    check_optimizer(args)


def test_tokens_may_go_to_one_expert():
    pytest.importorskip("megatron.core")
    model = replace(MOE_MODEL, moe=replace(MOE_MODEL.moe, top_k=1))
    assert transformer_config(parsed(make_job(model))).moe_router_pre_softmax


@given(jobs())
def test_megatron_core_splits_layers_as_predicted(job):
    pytest.importorskip("megatron.core")
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    if job.recipe.pp == 1 or megatron_launch(job).impossible:
        return
    config = transformer_config(parsed(job))
    vpp = job.recipe.vpp

    def layers(stage: int, chunk: int) -> int:
        layout = config.pipeline_model_parallel_layout
        if layout is not None:
            return layout.layout[stage][chunk].count(LayerType.decoder)
        return get_num_layers_to_build(config, chunk if vpp > 1 else None, stage)

    split = tuple(
        tuple(layers(stage, chunk) for chunk in range(vpp)) for stage in range(job.recipe.pp)
    )
    assert split == job.layers_per_chunk


def check_optimizer(args: argparse.Namespace) -> None:
    """The settings of optimizer and data parallelism, as Megatron-Core checks them."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    if hasattr(args, "use_precision_aware_optimizer"):
        # Needs Transformer Engine's optimizer installed; what it asks for besides:
        assert args.optimizer == "adam"
        assert args.use_distributed_optimizer
        return
    for cls in (OptimizerConfig, DistributedDataParallelConfig):
        names = {field.name for field in dataclasses.fields(cls)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cls(**{name: value for name, value in vars(args).items() if name in names})
    # DistributedOptimizer takes Adam only.
    assert args.optimizer == "adam" or not hasattr(args, "use_distributed_optimizer")


def test_the_table_has_no_argument_twice():
    options = [row["option"] for row in table()]
    assert len(options) == len(set(options))


@pytest.mark.parametrize(
    "words",
    ["--align-param-gather", "--recompute-granularity some", "--tensor-model-parallel-size two"],
)
def test_the_rebuilt_parser_refuses_what_megatron_refuses(words):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        PARSER.parse_args(words.split())
