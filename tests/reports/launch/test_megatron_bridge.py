"""Megatron-Bridge configurations against its fields and Megatron-Core's checks.

Megatron-Bridge itself cannot be installed without CUDA: its configuration classes are stood in
for by recorders that take the fields of the table beside this file, and those that they inherit.
"""

import csv
import dataclasses
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings

from tests.reports.dialects.jobs import LATENT, jobs
from tests.simulators.jobs import LLAMA, make_job
from trainscout.reports.dialects import megatron_core
from trainscout.reports.launch.directory import megatron_launch
from trainscout.reports.launch.megatron_bridge import launch
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.tuning import Distillation, Lora

TABLE = Path(__file__).with_name("megatron_bridge_fields.csv")


def fields() -> dict[str, set[str]]:
    """Fields of each configuration class."""
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    own = {row["class"]: set(row["fields"].split()) for row in csv.DictReader(lines)}
    inherited = {
        "DistributedDataParallelConfig": DistributedDataParallelConfig,
        "OptimizerConfig": OptimizerConfig,
        "GPTDatasetConfig": GPTDatasetConfig,
        "GPTModelProvider": TransformerConfig,
        "MLAModelProvider": MLATransformerConfig,
    }
    for name, base in inherited.items():
        own[name] = own[name] | {field.name for field in dataclasses.fields(base)}
    own["MLAModelProvider"] |= own["GPTModelProvider"]
    own["GPTDatasetConfig"] |= own["DataloaderConfig"]
    return own


class Recorded(types.SimpleNamespace):
    """What a configuration class was told."""


def stand_ins() -> dict[str, types.ModuleType]:
    known = fields()

    def recorder(name):
        def make(**given):
            unknown = set(given) - known[name]
            assert not unknown, f"{name} has no {unknown}"
            return Recorded(**given)

        return make

    places = {
        "megatron.bridge.models.gpt_provider": ["GPTModelProvider"],
        "megatron.bridge.models.mla_provider": ["MLAModelProvider"],
        "megatron.bridge.training.comm_overlap": ["CommOverlapConfig"],
        "megatron.bridge.training.mixed_precision": ["MixedPrecisionConfig"],
        "megatron.bridge.training.config": [
            "CheckpointConfig",
            "ConfigContainer",
            "DistributedDataParallelConfig",
            "DistributedInitConfig",
            "GPTDatasetConfig",
            "LoggerConfig",
            "OptimizerConfig",
            "RNGConfig",
            "RerunStateMachineConfig",
            "SchedulerConfig",
            "TokenizerConfig",
            "TrainingConfig",
        ],
    }
    functions = {
        "megatron.bridge.training": ["initialize"],
        "megatron.bridge.training.gpt_step": ["forward_step"],
        "megatron.bridge.training.pretrain": ["pretrain"],
        "megatron.bridge.training.utils": [],
        "megatron.bridge.training.utils.omegaconf_utils": ["process_config_with_overrides"],
        "megatron.bridge": [],
        "megatron.bridge.models": [],
    }
    modules = {}
    for place, names in {**places, **functions}.items():
        module = types.ModuleType(place)
        for name in names:
            setattr(module, name, recorder(name) if name in known else None)
        modules[place] = module
    return modules


def configuration(job: Job) -> Recorded:
    module = types.ModuleType("megatron_bridge")
    with mock.patch.dict(sys.modules, stand_ins()):
        source = launch(job).files["megatron_bridge.py"]
        exec(compile(source, "megatron_bridge.py", "exec"), module.__dict__)
        return module.recipe()


def test_fine_tuning_starts_from_a_checkpoint_with_adapters():
    job = make_job(LLAMA, training={"lora": Lora(8), "packed_lengths": (16, 32)})
    source = launch(job).files["megatron_bridge.py"]
    compile(source, "megatron_bridge.py", "exec")
    assert "finetune(config, forward_step)" in source
    assert "from megatron.bridge.peft.lora import LoRA" in source
    assert "packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=64)" in source
    latent = launch(make_job(LATENT, training={"lora": Lora(8, ("linear_qkv", "linear_fc2"))}))
    assert "'linear_kv_up_proj', 'linear_fc2']" in latent.files["megatron_bridge.py"]
    for shared in (False, True):
        training = {"lora": Lora(8), "shares_expert_adapters": shared}
        experts = launch(make_job(LATENT, training=training)).files["megatron_bridge.py"]
        assert ("share_expert_adapters=False" in experts) is not shared
    with_magnitudes = replace(job.training, lora=Lora(8, dora=True))
    weighed = launch(replace(job, training=with_magnitudes))
    assert "from megatron.bridge.peft.dora import DoRA" in weighed.files["megatron_bridge.py"]
    assert "peft=DoRA(" in weighed.files["megatron_bridge.py"]
    assert "pretrained_checkpoint=PRETRAINED" in source
    several = replace(job, recipe=replace(job.recipe, micro_batch=2))
    assert any("packed" in reason for reason in launch(several).impossible)
    (reason,) = megatron_launch(job).impossible
    assert "training.lora" in reason
    plain = launch(make_job(LLAMA)).files["megatron_bridge.py"]
    assert "pretrain(config, forward_step)" in plain
    assert "PRETRAINED" not in plain


def test_packs_that_ranks_share_are_padded_and_their_loss_counted_by_tokens():
    job = make_job(LLAMA, cp=2, training={"packed_lengths": (16, 32)})
    source = launch(job).files["megatron_bridge.py"]
    assert "PackedSequenceSpecs(packed_sequence_size=64, pad_seq_to_mult=4)" in source
    assert "calculate_per_token_loss=True" in source
    assert (
        "calculate_per_token_loss" not in launch(make_job(LLAMA, cp=2)).files["megatron_bridge.py"]
    )


@pytest.mark.parametrize("fused", [True, False])
def test_positions_of_latent_attention_are_fused_where_they_were_predicted_so(fused: bool):
    job = make_job(LATENT, training={"fused_rope": fused})
    assert f"apply_rope_fusion={fused}" in launch(job).files["megatron_bridge.py"]


def test_a_teacher_is_sharded_as_the_student():
    teacher = replace(LLAMA, name="teacher", num_layers=24)
    job = make_job(LLAMA, tp=2, pp=2, training={"distillation": Distillation(teacher)})
    source = launch(job).files["megatron_bridge.py"]
    compile(source, "megatron_bridge.py", "exec")
    assert "distill(taught(config))" in source
    for name in ("distill", "AutoBridge", "convert_to_distillation_provider"):
        assert f"import {name}\n" in source
    assert any("TEACHER=" in each for each in launch(job).fill_in)
    chunked = replace(job, recipe=replace(job.recipe, vpp=2))
    assert any("training.distillation" in reason for reason in launch(chunked).impossible)


@given(jobs())
def test_every_field_exists_and_megatron_core_accepts_the_model(job):
    pytest.importorskip("megatron.core")
    if launch(job).impossible:
        assert launch(job).files == {}
        return
    config = configuration(job)
    recipe = job.recipe
    assert config.train.global_batch_size == job.training.global_batch_size
    assert config.train.micro_batch_size == recipe.micro_batch
    assert config.dataset.seq_length == config.model.seq_length == job.sequence_length
    assert config.ddp.use_distributed_optimizer == (recipe.zero_stage >= 1)
    assert config.optimizer.use_distributed_optimizer == (recipe.zero_stage >= 1)
    assert config.comm_overlap.overlap_grad_reduce == (
        recipe.overlap_grad_reduce or recipe.zero_stage >= 2
    )
    assert config.ddp.overlap_param_gather == (
        recipe.overlap_param_gather or recipe.zero_stage == 3
    )
    assert config.comm_overlap.tp_comm_overlap == recipe.tp_comm_overlap
    accepted = transformer_config(config, job)
    assert accepted.virtual_pipeline_model_parallel_size == (
        recipe.vpp if recipe.vpp > 1 else None
    )


def transformer_config(config: Recorded, job: Job):
    """The model's and the precision's fields in Megatron-Core's class, which checks them."""
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig
    from packaging.version import Version as PkgVersion

    cls = TransformerConfig if job.model.mla is None else MLATransformerConfig
    names = {field.name for field in dataclasses.fields(cls)}
    told = {**vars(config.mixed_precision), **vars(config.model)}
    told |= {
        name: value
        for name, value in vars(config.comm_overlap).items()
        if name in ("tp_comm_overlap", "overlap_moe_expert_parallel_comm")
    }
    given_here = {name: value for name, value in told.items() if name in names}
    # These need Transformer Engine's kernels installed.
    given_here.pop("apply_rope_fusion")
    given_here.pop("moe_permute_fusion", None)
    with (
        warnings.catch_warnings(),
        mock.patch("megatron.core.utils._te_version", PkgVersion("2.8.0")),
    ):
        warnings.simplefilter("ignore")
        return cls(**given_here)


@settings(max_examples=settings.default.max_examples // 2)
@given(jobs())
def test_it_refuses_what_megatron_core_refuses(job):
    assert launch(job).impossible == megatron_core.impossible(job)
    unsupported = launch(job).unsupported
    of_core = megatron_core.unsupported(job, "megatron_bridge")
    assert unsupported[: len(of_core)] == of_core
    apart = job.recipe.zero_stage >= 2 and job.framework.fused_wgrad
    assert any("fused_wgrad" in lack for lack in unsupported) == apart
