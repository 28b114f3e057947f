"""What every field of a model and of its training owes the launch files: whatever is changed, they
change, or say that the framework does otherwise, or there are none; what has no place in them is
listed here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from tests.reports.dialects.jobs import BLACKWELL
from tests.reports.launch.test_knob_contract import launched
from tests.simulators.jobs import DELTA, HYBRID, LLAMA, MLA_MOE, MOE, SSM, TINY, TOWER, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.launch.directory import FRAMEWORKS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.experts import DISPATCHERS, Moe
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import AttentionMixer, Index, Mixer
from trainscout.simulators.predictor.question.model import Model, PerLayerInput
from trainscout.simulators.predictor.question.pooled import Pooled
from trainscout.simulators.predictor.question.training import (
    OPTIMIZERS,
    PRECISIONS,
    QUANTISED,
    ModulePrecision,
)
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Distillation, Dpo, Lora
from trainscout.simulators.predictor.question.validity import why_invalid

WIDE = replace(SSM, chunk=128)
NEAR, SINKS = AttentionMixer(window=16), AttentionMixer(sinks=True)


def layered(model: Model, layers: str, **kinds: Mixer) -> Model:
    return replace(model, layers=layers, kinds=kinds)


PLAIN = replace(LLAMA, qk_norm=False, qkv_bias=True)
MODELS: dict[str, Model] = {
    "gpt": TINY,
    "llama": LLAMA,
    "biased": PLAIN,
    "wide heads": replace(PLAIN, qkv_bias=False, head_dim=48),
    "experts": replace(MOE, moe=Moe(8, 2, 128, shared_ffn_hidden_size=64, num_dense_layers=1)),
    "latent": replace(MLA_MOE, num_mtp_layers=1),
    "windows": layered(LLAMA, "6*(near/dense, far/dense)", near=Mixer(NEAR), far=Mixer(NEAR)),
    "sinks": layered(
        replace(MOE, qkv_bias=True, linear_bias=True, clamped_mlp=True),
        "6*(near/moe, whole/moe)",
        near=Mixer(replace(NEAR, sinks=True)),
        whole=Mixer(SINKS),
    ),
    "scans": layered(LLAMA, "6*(scan/none, attention/dense)", scan=Mixer(mamba2=WIDE)),
    "scans and experts": layered(
        MOE, "3*(scan/none, none/moe, attention/none, scan/none)", scan=Mixer(mamba2=WIDE)
    ),
    "hybrid": HYBRID,
}
TRAININGS: dict[str, dict[str, Any]] = {
    "": {},
    "lora": {"lora": Lora(8)},
    "packed": {"packed_lengths": (16, 48)},
    "taught": {"distillation": Distillation(replace(LLAMA, name="teacher"))},
    "fp8": {"precision": "fp8_block"},
    "nvfp4": {"precision": "nvfp4", "module_precision": ModulePrecision(mlp="bf16")},
}
BASES = [(name, "") for name in MODELS] + [
    (name, how) for name in ("llama", "experts") for how in TRAININGS if how
]
# What a field that is left out can hold, and which words are no free text.
PARTS: dict[str, Any] = {
    "moe": MOE.moe,
    "mla": MLA_MOE.mla,
    "per_layer_input": PerLayerInput(1000, 16),
    "pooled": Pooled((LLAMA.hidden_size, 10)),
    "towers": (TOWER,),
    "index": Index(heads=4, dim=16, top_k=16),
    "attention": SINKS,
    "mamba2": SSM,
    "delta": DELTA,
    "lora": Lora(8),
    "dpo": Dpo(),
    "frozen": ("language_model",),
    "packed_lengths": (16, 48),
    "targets": LORA_TARGETS[:1],
}
WORDS: dict[str, tuple[Any, ...]] = {
    "normalization": ("layernorm", "rmsnorm"),
    "position": ("learned", "rope", "none"),
    "dispatcher": DISPATCHERS,
    "precision": PRECISIONS,
    "optimizer": tuple(OPTIMIZERS),
    "frozen_weights": ("16bit", "nf4"),
    "loss": ("kl", "jsd"),
    **{each.name: (None, "bf16", "fp8_block") for each in fields(ModulePrecision)},
}
NUMBERS = (0, 0.5, 1, 1.5, 2, 4, 16, 32, 64)
# Names, sources, what tests of their own change in many ways, or no launch file has at all.
UNCHANGED = {
    *("Model.name", "Model.source", "Model.simplified", "Model.diffusion", "Model.kinds"),
    *("Moe.histogram", "Moe.measured", "Training.distillation", "AttentionMixer.text"),
    *("Mixer.mamba1", "Mixer.short_conv", "Mixer.compressed", "Distillation.teacher"),
}


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """A value with one field after another changed, by the field's path."""
    hints = get_type_hints(type(value), vars(sys.modules[type(value).__module__]))
    for field in fields(value):
        name, old = field.name, getattr(value, field.name)
        kinds = get_args(hints[name]) or (hints[name],)
        if name == "kinds":
            for key, mixer in old.items():
                for path, new in changed(mixer):
                    yield f"kinds.{path}", replace(value, kinds={**old, key: new})
        if f"{type(value).__name__}.{name}" in UNCHANGED:
            continue
        if is_dataclass(old):
            for path, new in changed(old):
                yield f"{name}.{path}", replace(value, **{name: new})
        for new in others(name, old, kinds):
            yield name, replace(value, **{name: new})


def others(name: str, old: Any, kinds: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = [None] if NoneType in kinds else []
    if bool in kinds:
        found = [not old]
    elif name in WORDS:
        found = [*WORDS[name]]
    elif name in PARTS:
        found += [PARTS[name], *([()] if isinstance(old, tuple) else [])]
    elif int in kinds or float in kinds:
        found += [each for each in (*NUMBERS, 2 * (old or 0)) if type(each) in kinds]
    assert found or is_dataclass(old), name
    return [each for each in found if each != old]


def is_valid(job: Job) -> bool:
    try:
        job.model.check()
        job.training.check()
        job.training.check_for(job.model)
        return why_invalid(job) is None
    except InputError:
        return False


def said(job: Job) -> object:
    """What launch files owe a job: what means nothing to it, or has no place in them, is alike."""
    model, training = job.model, job.training
    latent, rotates = model.mla is not None, model.position == "rope"
    biased = model.linear_bias or model.qkv_bias
    eight = job.precision in QUANTISED
    moe = model.moe and replace(
        # How data loads experts.
        model.moe.balanced,
        experts_in_turn=False,
        pad_to_capacity=model.moe.capacity_factor is None or model.moe.pad_to_capacity,
    )
    alike: dict[str, Any] = {
        "head_dim": model.qk_head_dim,
        "num_query_groups": None if latent else model.kv_heads,
        # Latent queries and keys always are.
        "qk_norm": model.qk_norm or latent,
        "ffn_hidden_size": model.ffn_widths,
        "mixes_streams": model.mixes_streams or model.residual_streams == 1,
        "rotary_fraction": model.rotary_fraction if rotates and not latent else 1,
        "key_bias": model.key_bias or not biased,
        "num_layers_at_start_in_bf16": model.num_layers_at_start_in_bf16 if eight else 0,
        "num_layers_at_end_in_bf16": model.num_layers_at_end_in_bf16 if eight else 0,
        # No framework but Megatron pads.
        "vocab_multiple": model.vocab_multiple if "megatron" in job.framework.name else 1,
    }
    how: dict[str, Any] = {
        "precision": job.precision,
        "sequence_length": job.sequence_length,
        "module_precision": job.module_precision,
        # The data's.
        "loader_samples_per_s": None,
        "packed_lengths": bool(training.packed_lengths),
    }
    if job.precision != "nvfp4":
        how |= dict.fromkeys((each for each in vars(training) if each.startswith("nvfp4")), True)
    return replace(model, moe=moe, **alike), replace(training, **how)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("name", "how"), BASES)
def test_every_field_is_launched_or_refused(name: str, how: str, framework: str) -> None:
    own = {"megatron_lm": "megatron_core"}.get(framework, framework)
    job = replace(make_job(MODELS[name], tp=1), gpu=BLACKWELL)
    training = replace(job.training, **TRAININGS[how])
    declared = load_catalogue().frameworks[own]
    job = replace(job, training=training, framework=declared)
    launch = FRAMEWORKS[framework]
    base = launched(launch(job)) if is_valid(job) else None
    if base is None:
        return
    jobs = [(f"model.{path}", replace(job, model=new)) for path, new in changed(job.model)]
    jobs += [(f"training.{path}", replace(job, training=new)) for path, new in changed(training)]
    alike = [
        path
        for path, each in jobs
        if is_valid(each) and said(each) != said(job) and launched(launch(each)) == base
    ]
    assert alike == []


def test_what_a_framework_would_take_a_default_for_is_refused() -> None:
    assert MLA_MOE.mla is not None
    unturned = replace(MLA_MOE, mla=replace(MLA_MOE.mla, qk_rope_head_dim=0))
    job = replace(make_job(unturned), framework=load_catalogue().frameworks["megatron_core"])
    assert is_valid(job)
    assert not any(launch(job).files for launch in FRAMEWORKS.values())


def test_every_framework_launches_some_of_them() -> None:
    launching = {
        framework: sum(bool(launch(make_job(model)).files) for model in MODELS.values())
        for framework, launch in FRAMEWORKS.items()
    }
    assert launching == {"megatron_lm": 10, "megatron_bridge": 6, "torchtitan": 3, "deepspeed": 4}
