"""What every field of a question owes traced layers: whatever is changed, Megatron-Core's layers
change, or the question is refused; what follows after tracing, or means nothing to them, is listed
here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.knobs import values_of
from tests.needs import needs
from tests.reports.launch.test_field_contract import MODELS, changed, is_valid, said
from tests.simulators.jobs import LLAMA, MLA_MOE, TINY, make_job
from tests.simulators.virtual_cluster.traced.layer_cases import HYBRID
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Layer
from trainscout.simulators.predictor.question.recipe import KNOBS
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.virtual_cluster.traced.cache import (
    Refused,
    TracedLayer,
    TracedLayerCache,
)
from trainscout.simulators.virtual_cluster.traced.layer_spec import (
    LAYER,
    LayerSpec,
    layer_specs_of,
    transformer_layer,
)
from trainscout.simulators.virtual_cluster.traced.tracer import traced_layers

EXPERTS = MODELS["experts"]
BASES = {
    "gpt": make_job(TINY, tp=2, sp=True),
    "unfused": make_job(TINY, tp=2, sp=True, training={"attention": "unfused"}),
    "llama": make_job(LLAMA, tp=2, sp=True, training={"precision": "fp8_current"}),
    "delayed": make_job(LLAMA, tp=2, sp=True, training={"precision": "fp8"}),
    "selective": make_job(LLAMA, tp=2, sp=True, pp=2, recompute="selective"),
    "experts": make_job(EXPERTS, tp=2, sp=True, ep=2),
    "latent": make_job(MLA_MOE, tp=2, sp=True, ep=2),
    "hybrid": make_job(HYBRID, tp=2, sp=True, ep=2),
}
WORDS: dict[str, tuple[Any, ...]] = {
    "attention": ("flash2", "flash1", "flash1_triton", "unfused"),
    "fusion": ("compiled", "eager"),
    "rope": ("pairs", "complex", "packed"),
    "cross_entropy": ("in_place", "pieces", "compiled", "returned", "fp32_in_place", "eager"),
    "delta_rule": ("rows", "solved"),
    "masked_dispatch": ("sequence", "micro_batch"),
    "written_dispatch": ("half", "atomic", "fp32"),
    "pipeline_buffers": ("outputs", "preallocated"),
    "gradient_bucket": ("backward", "gradient", "always"),
    "host_optimizer": ("pipelined", "serial"),
    "moments_8bit": ("all", "layers"),
    "fp8_param_gather": (("fp8", "fp8_current"),),
}
NAMES = {"name", "source", "space", "code", "launch", "alternatives", "supersedes", "lacks"} | {
    "schedules"
}
# What the traced source does to layers when they have been traced.
AFTERWARDS = {
    "model.tied_embeddings": "the head on the embedding's rank gives up its weight",
    "framework.attention": "which fused kernel attends is declared, not traced",
    "recipe.tp_comm_overlap": "userbuffers are cut up as in the built-in layers",
}
# Of other layers than the first: of MLPs, and of the embedding.
LATER = {
    *(("hybrid", "model.ffn_hidden_size"), ("hybrid", "model.gated_mlp")),
    ("gpt", "model.position"),
}
# Traced alike.
NOTHING = {
    ("latent", "model.position"): "what it turns is ``mla.qk_rope_head_dim`` wide",
    ("gpt", "model.scaled_rope"): "its positions are learned",
    ("hybrid", "model.scaled_rope"): "it has no positions",
}


def neighbours(job: Job) -> Iterator[tuple[str, Job]]:
    """Valid jobs that differ in one field, by its path."""
    found = [(f"model.{path}", replace(job, model=new)) for path, new in changed(job.model)]
    for path, training in changed(job.training):
        found.append((f"training.{path}", replace(job, training=training)))
    for field in fields(Framework):
        old = getattr(job.framework, field.name)
        if field.name not in NAMES:
            new = (not old,) if isinstance(old, bool) else WORDS.get(field.name) or (2 * old + 1,)
            found += [
                (
                    f"framework.{field.name}",
                    replace(job, framework=replace(job.framework, **{field.name: each})),
                )
                for each in new
            ]
    for name, knob in KNOBS.items():
        for each in values_of(knob) if name not in ("framework", "pipeline_layout") else ():
            recipe = replace(job.recipe, **{name: each})
            found.append((f"recipe.{name}", replace(job, recipe=recipe)))
    return ((path, each) for path, each in found if each != job and is_valid(each))


def specs_of(job: Job) -> tuple[LayerSpec, ...] | None:
    try:
        return layer_specs_of(job)
    except InputError:
        return None


def blocks(job: Job) -> set[object]:
    """What passes of the built-in layers are."""
    stages = build_workload(job).stages
    runs = (run for stage in stages for chunk in stage.chunks for run in chunk.runs)
    return {(run.forward, run.backward) for run in runs}


@pytest.mark.parametrize("name", BASES)
def test_what_changes_built_in_layers_changes_traced_ones_or_is_refused(name: str) -> None:
    job = BASES[name]
    specs, built = layer_specs_of(job), blocks(job)
    alike = {
        path for path, each in neighbours(job) if specs_of(each) == specs and blocks(each) != built
    }
    assert alike - AFTERWARDS.keys() == set()


def ran(layer: TracedLayer | Refused) -> object:
    return (
        layer if isinstance(layer, Refused) else (layer.forward, layer.backward, layer.parameters)
    )


def changed_layers(job: Job, new: Job) -> list[LayerSpec]:
    """Layers of the second that the first has not, its ends last."""
    found = set(specs_of(new) or ()) - set(layer_specs_of(job))
    return sorted(found, key=lambda spec: (LAYER not in spec.kind, repr(spec)))


@needs("megatron.core", "transformer_engine")
def test_every_field_of_a_model_changes_what_is_traced(tmp_path: Path) -> None:
    names = ("gpt", "llama", "experts", "latent", "hybrid")
    bases = {name: layer_specs_of(BASES[name]) for name in names}
    # Most of the time one layer is enough.
    changed_by = {
        (name, path): layers if (name, path) in LATER | NOTHING.keys() else layers[:1]
        for name in names
        for path, each in neighbours(BASES[name])
        if path.startswith("model.moe." if name == "experts" else "model.")
        and said(each) != said(BASES[name])
        and (layers := changed_layers(BASES[name], each))
    }
    assert len(changed_by) > 60
    wanted = dict.fromkeys(
        spec for specs in (*bases.values(), *changed_by.values()) for spec in specs
    )
    answers = traced_layers([*wanted], BASES["gpt"].gpu, TracedLayerCache(tmp_path))
    known = {name: [ran(answers[spec]) for spec in specs] for name, specs in bases.items()}
    alike = {
        (name, path)
        for (name, path), specs in changed_by.items()
        if all(ran(answers[spec]) in known[name] for spec in specs)
    }
    assert alike == NOTHING.keys()
    assert not [each for each in answers.values() if isinstance(each, Refused)]


def test_layers_that_stay_in_16_bits_are_those_of_16_bit_training() -> None:
    kept = replace(LLAMA, num_layers_at_start_in_bf16=1)
    *_, usual, head = layer_specs_of(make_job(kept, training={"precision": "fp8_current"}))
    found = layer_specs_of(make_job(kept, training={"precision": "fp8_current"}))
    assert found[1] == layer_specs_of(make_job(LLAMA))[1]
    assert {usual.precision, head.precision} == {"fp8_current"}


def test_a_width_of_the_pattern_is_the_layers() -> None:
    wide = replace(LLAMA, layers=f"{LLAMA.num_layers}*(attention/512)")
    spec = transformer_layer(make_job(wide), Layer("attention", "dense", 512), recompute="none")
    assert layer_specs_of(make_job(wide))[1] == spec
    assert (spec.model.ffn_hidden_size, spec.model.layers) == (512, None)
